//! The tensors of a checkpoint that belong together: weights, adapters or moments. Each rank writes a file with some of
//! them.

use super::OUTPUT_DIR;
use super::arena_tensors::{ArenaTensor, ReadRows};
use super::gathering::Gathering;
use super::holdings::Holding;
use super::router_tensors::RouterTensor;
use super::tensor_file::{TensorFile, TensorInfo};
use super::weight_index::{self, file_name};
use crate::error::Result;
use crate::ranks::Ranks;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Tensors in one file, or in several with an index.
pub(super) struct TensorSet<'a> {
    pub folder: &'a Path,
    /// What the files are called, with a number where there are several.
    pub stem: &'a str,
    /// The tensors of each rank.
    pub by_rank: &'a [Vec<ArenaTensor<'a>>],
    /// What all ranks have besides.
    pub router_state: &'a [RouterTensor],
    /// How many ranks write, the first ones.
    pub writers: usize,
}

impl TensorSet<'_> {
    /// Writes this rank's file. The others get what they need from this one even if that fails.
    ///
    /// # Errors
    /// A disk or device that fails; a rank that has ended.
    pub async fn save(&self, ranks: &Ranks, read: &impl ReadRows) -> Result<()> {
        let holdings = Holding::list(self.by_rank, self.router_state, self.writers);
        let mut gathering = Gathering::new(ranks, &holdings, &self.by_rank[ranks.rank()]);
        let written = self.write(ranks, &holdings, &mut gathering, read).await;
        written.and(gathering.finish(read).await)
    }

    async fn write(
        &self,
        ranks: &Ranks,
        holdings: &[Holding<'_>],
        gathering: &mut Gathering<'_>,
        read: &impl ReadRows,
    ) -> Result<()> {
        let writers = gathering.writers();
        let files = writers.len().max(1);
        let name_of = |writer: usize| {
            file_name(self.stem, 1 + writers.iter().position(|rank| *rank == writer).unwrap_or(0), files)
        };
        if ranks.is_first() && files > 1 {
            let names: BTreeMap<String, String> =
                holdings.iter().map(|holding| (holding.info.name.clone(), name_of(holding.writer))).collect();
            let bytes = holdings.iter().filter_map(|holding| holding.info.size_bytes()).sum();
            weight_index::write(self.folder, self.stem, &names, bytes)?;
        }
        // A single file is there even if it has no tensors.
        let writes = writers.contains(&ranks.rank()) || (writers.is_empty() && ranks.is_first());
        if !writes {
            return Ok(());
        }
        let path = self.folder.join(name_of(ranks.rank()));
        let infos: Vec<TensorInfo> =
            gathering.own_tensors().into_iter().map(|holding| holding.info.clone()).collect();
        // transformers refuses files without this entry.
        let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
        let mut file = TensorFile::begin(&path, &infos, metadata)?;
        for index in file.order() {
            let mut sink = file.sink(index);
            gathering.next(read, &mut |row: &[u8]| sink.put(row)).await?;
            sink.finish()?;
        }
        file.end()?;
        // The first rank syncs all files when it commits the checkpoint, but cannot do so for those written on other
        // machines.
        if ranks.is_first() { Ok(()) } else { OUTPUT_DIR.sync_file(&path) }
    }
}

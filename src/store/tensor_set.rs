//! The tensors of a checkpoint that belong together: weights, adapters or moments. Each rank writes a file with some of
//! them.
//!
//! Ranks that write need parts of tensors that others hold. In each round every rank writes the next tensor of its
//! file: it receives the parts that others hold of it, and sends them its parts of the tensors that they write. So a
//! rank has in memory one tensor and its parts of others, and all files grow at once. A tensor that a rank holds whole
//! is streamed from its device, and nothing is exchanged.
//!
//! A rank whose disk or device fails goes on sending, and the agreement at the end drops the checkpoint.

use super::OUTPUT_DIR;
use super::arena_tensors::{ArenaTensor, ReadRows, TakeRow};
use super::holdings::{Holding, RankCells, TensorOrigin, written};
use super::router_tensors::RouterTensor;
use super::tensor_file::{TensorFile, TensorInfo};
use super::weight_index::{self, file_name};
use crate::error::{Error, Result};
use crate::ranks::{Ranks, Transport};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Tensors in one file, or in several with an index.
pub(super) struct TensorSet<'a> {
    pub folder: &'a Path,
    /// The stem of the files' names, which have a number where there are several files.
    pub stem: &'a str,
    /// The tensors of each rank.
    pub by_rank: &'a [Vec<ArenaTensor<'a>>],
    /// The state of routers, which all ranks have.
    pub router_state: &'a [RouterTensor],
    /// How many ranks write; these are the first ranks.
    pub writers: usize,
}

impl TensorSet<'_> {
    /// Writes this rank's file. The other ranks get what they need from this one even if writing fails.
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
        // If there are no tensors, the first rank writes a file without any.
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
        // The first rank syncs all files when it commits the checkpoint, but cannot sync files that were written on
        // other machines.
        if ranks.is_first() { Ok(()) } else { OUTPUT_DIR.sync_file(&path) }
    }
}

/// The tensors that the ranks write, one round after the other. Every rank goes through all of them.
struct Gathering<'a> {
    ranks: &'a Ranks,
    holdings: &'a [Holding<'a>],
    /// The tensors that each rank writes, in order.
    written: Vec<Vec<usize>>,
    /// The tensors that this rank holds, by name.
    own: HashMap<&'a str, &'a ArenaTensor<'a>>,
    round: usize,
    /// Why this rank could not send the parts that others needed.
    failure: Option<Error>,
}

/// A message between two ranks: a part of a tensor.
type Message = (usize, Vec<u8>);

impl<'a> Gathering<'a> {
    /// The rounds for `holdings`, before the first one. This rank has the tensors `own`.
    fn new(ranks: &'a Ranks, holdings: &'a [Holding<'a>], own: &'a [ArenaTensor<'a>]) -> Self {
        let own = own.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        let written = written(holdings, ranks.size());
        Self { ranks, holdings, written, own, round: 0, failure: None }
    }

    /// The tensors that this rank writes, in order.
    fn own_tensors(&self) -> Vec<&'a Holding<'a>> {
        self.written[self.ranks.rank()].iter().map(|index| &self.holdings[*index]).collect()
    }

    /// The ranks that write something.
    fn writers(&self) -> Vec<usize> {
        (0..self.written.len()).filter(|rank| !self.written[*rank].is_empty()).collect()
    }

    /// Makes the next round, and hands the rows of the tensor that this rank writes in it to `take`, as the file holds
    /// them.
    ///
    /// # Errors
    /// An error of `read` or `take`; a rank that has ended.
    async fn next(&mut self, read: &impl ReadRows, take: TakeRow<'_>) -> Result<()> {
        let own = self.written[self.ranks.rank()].get(self.round).map(|index| &self.holdings[*index]);
        let cells = self.exchange(read).await?;
        match own.map(|holding| (holding.content, self.own.get(holding.info.name.as_str()))) {
            None => Ok(()),
            Some((TensorOrigin::Router(tensor), _)) => read.read_rows(tensor, take).await,
            Some((TensorOrigin::Parameter(_), Some(tensor))) if tensor.is_stored_whole() => {
                tensor.read(read, take).await
            }
            Some((TensorOrigin::Parameter(tensor), _)) => tensor.take_cells(&cells, take),
        }
    }

    /// Makes the rounds that are left, in which other ranks still write.
    ///
    /// # Errors
    /// A rank that has ended; a device that failed in any round.
    async fn finish(mut self, read: &impl ReadRows) -> Result<()> {
        let rounds = self.written.iter().map(Vec::len).max().unwrap_or(0);
        while self.round < rounds {
            self.exchange(read).await?;
        }
        self.failure.map_or(Ok(()), Err)
    }

    /// Sends this rank's parts of the tensors that others write in this round. Returns the cells of the tensor that
    /// this rank writes, if it does not hold that tensor whole.
    async fn exchange(&mut self, read: &impl ReadRows) -> Result<Vec<u8>> {
        let (rank, round, holdings) = (self.ranks.rank(), self.round, self.holdings);
        self.round += 1;
        let mut cells: Vec<u8> = Vec::new();
        let mut incoming: Vec<(RankCells, usize)> = Vec::new();
        let mut outgoing: Vec<Message> = Vec::new();
        for writer in 0..self.written.len() {
            let Some(&index) = self.written[writer].get(round) else { continue };
            let holding = &holdings[index];
            let own = self.own.get(holding.info.name.as_str()).copied();
            let (is_writer, width) = (writer == rank, holding.element().bytes() as usize);
            if is_writer && own.is_some_and(ArenaTensor::is_stored_whole) {
                continue;
            }
            if is_writer {
                cells.resize(holding.cells() * width, 0);
            }
            for source in holding.sources() {
                match own.filter(|_| source.rank == rank) {
                    Some(own) if is_writer => {
                        source.scatter(&self.read(own, &source, read).await, width, &mut cells);
                    }
                    Some(own) => outgoing.push((writer, self.read(own, &source, read).await)),
                    None if is_writer => incoming.push((source, width)),
                    None => {}
                }
            }
        }
        if outgoing.is_empty() && incoming.is_empty() {
            return Ok(cells);
        }
        self.ranks.run(move |transport| swap(transport, &outgoing, cells, &incoming)).await
    }

    /// The bytes of cells that this rank holds. If its device fails they are zeros, so that the other ranks need not
    /// wait for them, and the failure is kept.
    async fn read(&mut self, tensor: &ArenaTensor<'_>, source: &RankCells, read: &impl ReadRows) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut keep = |row: &[u8]| {
            bytes.extend_from_slice(row);
            Ok(())
        };
        let done = read.read_rows(tensor.stored(source.segment, source.place.clone()), &mut keep).await;
        self.failure = self.failure.take().or(done.err());
        bytes.resize(source.count() * tensor.element().bytes() as usize, 0);
        bytes
    }
}

/// Sends `outgoing`, and receives `incoming` into `cells`. Each of `incoming` has the size of its elements in bytes.
fn swap(
    transport: &mut dyn Transport,
    outgoing: &[Message],
    mut cells: Vec<u8>,
    incoming: &[(RankCells, usize)],
) -> Result<Vec<u8>> {
    let outgoing: Vec<(usize, &[u8])> = outgoing.iter().map(|(to, bytes)| (*to, bytes.as_slice())).collect();
    let mut received: Vec<Vec<u8>> =
        incoming.iter().map(|(source, width)| vec![0; source.count() * width]).collect();
    let mut places: Vec<(usize, &mut [u8])> = incoming
        .iter()
        .zip(&mut received)
        .map(|((source, _), bytes)| (source.rank, &mut bytes[..]))
        .collect();
    transport.exchange(&outgoing, &mut places)?;
    for ((source, width), bytes) in incoming.iter().zip(&received) {
        source.scatter(bytes, *width, &mut cells);
    }
    Ok(cells)
}

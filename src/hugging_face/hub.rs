//! Models by their names: the Hugging Face Hub, and the cache of its files that Python's `huggingface_hub` has, too.
//!
//! The variables are those of `huggingface_hub`: `HF_HOME`, `HF_HUB_CACHE`, `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_ENDPOINT` and
//! `HF_HUB_OFFLINE`.
//! Source: <https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables>.

mod cached;
mod connection;
mod download;
mod listing;
mod upload;

use self::cached::CachedModel;
pub(crate) use self::connection::{Hub, Watch};
use self::listing::Listing;
pub(crate) use self::listing::is_of_model;
pub(crate) use self::upload::{Content, Upload};
use super::by_command;
use crate::error::{Error, Result};
use std::path::{Path, PathBuf};

/// The name of the model whose folder in a cache `path` is.
pub(crate) fn name_of_snapshot(path: &Path) -> Option<String> {
    let snapshots = path.parent().filter(|folder| folder.ends_with("snapshots"))?;
    let model = snapshots.parent()?.file_name()?.to_str()?.strip_prefix("models--")?;
    Some(model.replacen("--", "/", 1))
}

impl Hub {
    /// The folder with the newest files of the model `name`, as far as a model needs them. What is not in the cache is
    /// fetched; without a network, the newest that is in the cache is taken.
    ///
    /// # Errors
    /// No such model; one that asks for a token or another; files that are not what the Hub says of them; no network, and
    /// nothing in the cache; a disk that fails.
    pub fn folder_of(&self, name: &str, watch: &mut dyn Watch) -> Result<PathBuf> {
        let cached = CachedModel::new(&self.cache, name);
        let why = match self.is_offline {
            true => "HF_HUB_OFFLINE is set".to_owned(),
            false => match self.listing(name)? {
                Ok(listing) => return cached.fetch(self, name, listing, watch),
                Err(unreachable) => format!("{} cannot be reached ({unreachable})", self.endpoint),
            },
        };
        let Some(folder) = cached.newest() else {
            let message =
                format!("{why}, and the model is not in {}; {}", self.cache.display(), by_command(name));
            return Err(Error::file(name, message));
        };
        watch.notice(&format!("{why}: {name} is what {} has", folder.display()));
        Ok(folder)
    }

    /// The files of the model `name`; the inner error is that of a network.
    fn listing(&self, name: &str) -> Result<std::result::Result<Listing, ureq::Error>> {
        let url = format!("{}/api/models/{name}/revision/main?blobs=true", self.endpoint);
        let mut answer = match self.get(&url, 0) {
            Ok(answer) => answer,
            Err(error) => return Ok(Err(error)),
        };
        self.check(name, &answer)?;
        let read = answer.body_mut().read_to_string();
        let listing = read.map_err(|error| error.to_string()).and_then(|text| Listing::of(&text));
        listing
            .map(Ok)
            .map_err(|why| Error::file(name, format!("what {url} answers is no list of files: {why}")))
    }
}

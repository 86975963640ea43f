//! Models by their names: the Hugging Face Hub, and the cache of its files that Python's `huggingface_hub` has, too.
//!
//! The variables are those of `huggingface_hub`: `HF_HOME`, `HF_HUB_CACHE`, `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_ENDPOINT` and
//! `HF_HUB_OFFLINE`.
//! Source: <https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables>.

mod cached;
mod download;
mod listing;

use self::cached::CachedModel;
use self::listing::Listing;
use super::by_command;
use crate::error::{Error, Result};
use std::env::{home_dir, var};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use ureq::config::RedirectAuthHeaders;
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body};

/// How long a connection, and the head of an answer, are waited for.
const PATIENCE: Duration = Duration::from_secs(20);

/// The Hub, and where its files are kept.
pub(crate) struct Hub {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
    cache: PathBuf,
    is_offline: bool,
}

/// What a user may want to see of a download.
pub(crate) trait Watch {
    /// `bytes` of all files, of which `present` are here already, will be in `folder`.
    fn begins(&mut self, bytes: u64, present: u64, folder: &Path);
    /// So many more bytes came; fewer if they are asked for again.
    fn came(&mut self, bytes: i64);
    /// Something that the user should know.
    fn notice(&mut self, line: &str);
}

impl Hub {
    /// The Hub that the environment names.
    ///
    /// # Errors
    /// There is no folder for the cache.
    pub fn of_environment() -> Result<Self> {
        let set = |name: &str| var(name).ok().filter(|value| !value.is_empty());
        let is_on = |name: &str| {
            set(name).is_some_and(|value| ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str()))
        };
        let caches = || set("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| Some(home_dir()?.join(".cache")));
        let home = set("HF_HOME").map(PathBuf::from).or_else(|| Some(caches()?.join("huggingface")));
        let no_home = || {
            Error::config(
                "HF_HOME",
                "no home folder, so set it to the folder that keeps the files of the Hub",
            )
        };
        let home = home.ok_or_else(no_home)?;
        let token_file = set("HF_TOKEN_PATH").map_or_else(|| home.join("token"), PathBuf::from);
        let token = set("HF_TOKEN").or_else(|| fs::read_to_string(token_file).ok());
        let agent = Agent::config_builder()
            .timeout_connect(Some(PATIENCE))
            .timeout_recv_response(Some(PATIENCE))
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .http_status_as_error(false)
            .user_agent(concat!("gristmill/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Self {
            agent: agent.into(),
            endpoint: set("HF_ENDPOINT")
                .map_or("https://huggingface.co".into(), |url| url.trim_end_matches('/').into()),
            token: token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty()),
            cache: set("HF_HUB_CACHE").map_or_else(|| home.join("hub"), PathBuf::from),
            is_offline: is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE"),
        })
    }

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

    /// Asks for what is at `url`, from byte `first` on.
    fn get(&self, url: &str, first: u64) -> std::result::Result<Response<Body>, ureq::Error> {
        let mut request = self.agent.get(url);
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        if first > 0 {
            request = request.header("Range", format!("bytes={first}-"));
        }
        request.call()
    }

    /// # Errors
    /// The answer is no file.
    fn check(&self, name: &str, answer: &Response<Body>) -> Result<()> {
        let status = answer.status();
        let page = format!("{}/{name}", self.endpoint);
        let message = match status {
            _ if status.is_success() => return Ok(()),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let token = match self.token {
                    Some(_) => {
                        "the token of HF_TOKEN or of `hf auth login` does not open it: accept its terms at that page, or take a token of an account that may read it"
                    }
                    None => {
                        "if the name is right, accept its terms at that page and set HF_TOKEN to a token of your account"
                    }
                };
                format!("{page} answers {status}; {token}")
            }
            StatusCode::NOT_FOUND => format!("there is no such model at {page}; look for its name there"),
            StatusCode::TOO_MANY_REQUESTS => {
                format!("{page} answers {status}; wait a few minutes, and call this again")
            }
            _ => format!("{page} answers {status}; try it again later, or {}", by_command(name)),
        };
        Err(Error::file(name, message))
    }
}

//! Requests to the Hub, and what its answers mean.

use crate::error::{Error, Result};
use crate::hugging_face::by_command;
use std::env::{home_dir, var};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use ureq::config::RedirectAuthHeaders;
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body};

/// How long a connection, and the head of an answer, are waited for.
const PATIENCE: Duration = Duration::from_secs(20);

/// The Hub, and where its files are kept.
pub(crate) struct Hub {
    pub(super) agent: Agent,
    pub(super) endpoint: String,
    pub(super) token: Option<String>,
    pub(super) cache: PathBuf,
    pub(super) is_offline: bool,
}

/// What a user may want to see of files on their way.
pub(crate) trait Watch {
    /// `bytes` of all files, of which `present` are there already, will be at `place`.
    fn begins(&mut self, bytes: u64, present: u64, place: &str);
    /// So many more bytes are there; fewer if they are asked for again.
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

    /// Asks for what is at `url`, from byte `first` on.
    pub(super) fn get(&self, url: &str, first: u64) -> std::result::Result<Response<Body>, ureq::Error> {
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
    pub(super) fn check(&self, name: &str, answer: &Response<Body>) -> Result<()> {
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

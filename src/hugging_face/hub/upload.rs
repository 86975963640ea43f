//! Files on their way to the Hub: large ones by git's protocol for them, in parts where the Hub asks for that, and then all
//! in one commit.
//!
//! Source: <https://huggingface.co/docs/hub/api>, and for large files
//! <https://github.com/git-lfs/git-lfs/blob/main/docs/api/batch.md>.

use super::connection::{Hub, Watch};
use crate::durable::read_error;
use crate::error::{Error, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;
use ureq::http::{Response, StatusCode};
use ureq::{Body, SendBody};

const JSON: &str = "application/json";
const LINES: &str = "application/x-ndjson";
const LARGE: &str = "application/vnd.git-lfs+json";
/// What the Hub looks at to say how a file goes there, in bytes.
const SAMPLE: usize = 512;
const BUFFER: usize = 1 << 18;
/// How long the Hub may take to join the parts of a file, or to make a commit.
const PATIENCE: Duration = Duration::from_secs(600);

/// A file of a commit.
pub(crate) struct Upload {
    pub name: String,
    pub content: Content,
}

pub(crate) enum Content {
    Text(String),
    File(PathBuf),
}

/// A file that is not in the commit itself.
struct Large<'a> {
    name: &'a str,
    path: &'a PathBuf,
    size: u64,
    sha256: String,
}

#[derive(Deserialize)]
struct Modes {
    files: Vec<Mode>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mode {
    path: String,
    upload_mode: String,
}

#[derive(Deserialize)]
struct Batch {
    objects: Vec<Object>,
}

#[derive(Deserialize)]
struct Object {
    oid: String,
    /// None if the Hub has the file.
    #[serde(default)]
    actions: BTreeMap<String, Action>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Action {
    href: String,
    #[serde(default)]
    header: BTreeMap<String, Value>,
}

impl Hub {
    /// Puts `files` into the model `name` in one commit with this `summary`, and creates the model, for its owner alone if
    /// it `is_private`, where there is none. The address of the model.
    ///
    /// # Errors
    /// There is no token, or it may not write there; a network that breaks off; a file that cannot be read.
    pub fn push(
        &self,
        name: &str,
        is_private: bool,
        summary: &str,
        files: &[Upload],
        watch: &mut dyn Watch,
    ) -> Result<String> {
        self.check_pushes(name)?;
        let bytes = files.iter().map(|file| file.content.size()).sum::<Result<u64>>()?;
        watch.begins(bytes, 0, &format!("{}/{name}", self.endpoint));
        self.create(name, is_private)?;
        let modes = self.modes(name, files)?;
        let mut lines = vec![json!({"key": "header", "value": {"summary": summary, "description": ""}})];
        let mut large = Vec::new();
        for file in files {
            match &file.content {
                Content::File(path) if modes.contains(&file.name) => large.push(Large::of(&file.name, path)?),
                content => {
                    watch.came(content.size()? as i64);
                    let value = json!({"path": file.name, "encoding": "base64", "content": BASE64.encode(content.bytes()?)});
                    lines.push(json!({"key": "file", "value": value}));
                }
            }
        }
        self.send_large(name, &large, watch)?;
        for Large { name, size, sha256, .. } in &large {
            lines.push(json!({"key": "lfsFile", "value": {"path": name, "algo": "sha256", "oid": sha256, "size": size}}));
        }
        let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
        self.post::<Value>(name, &format!("/api/models/{name}/commit/main"), LINES, &lines)?;
        Ok(format!("{}/{name}", self.endpoint))
    }

    /// # Errors
    /// There is no token, or no network may be used.
    pub fn check_pushes(&self, name: &str) -> Result<()> {
        let refused = |why: &str| Err(Error::file(name, why));
        match &self.token {
            _ if self.is_offline => refused("HF_HUB_OFFLINE is set, so nothing is sent"),
            None => refused(
                "sending needs a token that may write: set HF_TOKEN to one of https://huggingface.co/settings/tokens",
            ),
            Some(_) => Ok(()),
        }
    }

    fn create(&self, name: &str, is_private: bool) -> Result<()> {
        let (organization, model) = name.split_once('/').unwrap_or(("", name));
        let wanted =
            json!({"type": "model", "organization": organization, "name": model, "private": is_private});
        let answer =
            self.send(&format!("{}/api/repos/create", self.endpoint), JSON, &wanted.to_string(), name)?;
        // It is there already; or the token is for this model alone, and what follows says whether it is there.
        match answer.status() {
            StatusCode::CONFLICT | StatusCode::FORBIDDEN => Ok(()),
            _ => self.check_sent(name, answer).map(drop),
        }
    }

    /// The names of the files that are sent by git's protocol for large ones.
    fn modes(&self, name: &str, files: &[Upload]) -> Result<Vec<String>> {
        let described = files.iter().map(|file| {
            let (size, sample) = file.content.beginning()?;
            Ok(json!({"path": file.name, "size": size, "sample": BASE64.encode(sample)}))
        });
        let wanted = json!({"files": described.collect::<Result<Vec<_>>>()?});
        let modes: Modes =
            self.post(name, &format!("/api/models/{name}/preupload/main"), JSON, &wanted.to_string())?;
        Ok(modes.files.into_iter().filter(|file| file.upload_mode == "lfs").map(|file| file.path).collect())
    }

    fn send_large(&self, name: &str, files: &[Large], watch: &mut dyn Watch) -> Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        let objects: Vec<Value> =
            files.iter().map(|file| json!({"oid": file.sha256, "size": file.size})).collect();
        let wanted = json!({"operation": "upload", "transfers": ["basic", "multipart"], "hash_algo": "sha256", "objects": objects});
        let batch: Batch =
            self.post(name, &format!("/{name}.git/info/lfs/objects/batch"), LARGE, &wanted.to_string())?;
        for file in files {
            let object = batch.objects.iter().find(|object| object.oid == file.sha256);
            let object =
                object.ok_or_else(|| Error::file(name, format!("the Hub says nothing of {}", file.name)))?;
            if let Some(error) = &object.error {
                return Err(Error::file(name, format!("the Hub does not take {}: {error}", file.name)));
            }
            match object.actions.get("upload") {
                Some(action) => self.send_file(name, file, action, watch)?,
                None => watch.came(file.size as i64),
            }
            if let Some(verify) = object.actions.get("verify") {
                let what = json!({"oid": file.sha256, "size": file.size});
                let answer = self.send(&verify.href, LARGE, &what.to_string(), name)?;
                self.check_sent(name, answer)?;
            }
        }
        Ok(())
    }

    /// Sends a large file, as a whole or in parts of `chunk_size` bytes to one address each.
    fn send_file(&self, name: &str, file: &Large, action: &Action, watch: &mut dyn Watch) -> Result<()> {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let Some(size) = action.header.get("chunk_size").and_then(|size| text(size).parse::<u64>().ok())
        else {
            let headers: Vec<(&str, String)> =
                action.header.iter().map(|(key, value)| (&**key, text(value))).collect();
            self.put(name, file, &action.href, &headers, 0..file.size, watch)?;
            return Ok(());
        };
        let mut parts = Vec::new();
        let addresses =
            action.header.iter().filter_map(|(key, value)| Some((key.parse::<u64>().ok()?, text(value))));
        let addresses: BTreeMap<u64, String> = addresses.collect();
        for (number, address) in &addresses {
            let first = (number.saturating_sub(1)).saturating_mul(size).min(file.size);
            let bytes = first..first.saturating_add(size).min(file.size);
            let answer = self.put(name, file, address, &[], bytes, watch)?;
            let tag = answer.headers().get("ETag").and_then(|tag| tag.to_str().ok());
            let tag =
                tag.ok_or_else(|| Error::file(name, format!("part {number} of {} has no ETag", file.name)))?;
            parts.push(json!({"partNumber": number, "etag": tag}));
        }
        let whole = json!({"oid": file.sha256, "parts": parts});
        let answer = self.send(&action.href, LARGE, &whole.to_string(), name)?;
        self.check_sent(name, answer).map(drop)
    }

    /// Sends these bytes of a file. The token is for the Hub alone.
    fn put(
        &self,
        name: &str,
        file: &Large,
        address: &str,
        headers: &[(&str, String)],
        bytes: std::ops::Range<u64>,
        watch: &mut dyn Watch,
    ) -> Result<Response<Body>> {
        let failed = |error: io::Error| read_error(file.path, "read", &error);
        let mut part = File::open(file.path).map_err(failed)?;
        part.seek(SeekFrom::Start(bytes.start)).map_err(failed)?;
        let count = bytes.end - bytes.start;
        let mut reader = Counted { inner: part.take(count), watch };
        let mut request = self.agent.put(address).header("Content-Length", count.to_string());
        for (key, value) in headers {
            request = request.header(*key, value);
        }
        let answer =
            request.send(SendBody::from_reader(&mut reader)).map_err(|error| broken(name, &error))?;
        self.check_sent(name, answer)
    }

    /// What the Hub answers to `body`, read as JSON.
    fn post<T: serde::de::DeserializeOwned>(
        &self,
        name: &str,
        path: &str,
        kind: &str,
        body: &str,
    ) -> Result<T> {
        let answer = self.send(&format!("{}{path}", self.endpoint), kind, body, name)?;
        let text = self.check_sent(name, answer)?.body_mut().read_to_string();
        let read = text.map_err(|error| error.to_string());
        let read = read.and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()));
        read.map_err(|why| {
            Error::file(name, format!("{path} of {} answers something else: {why}", self.endpoint))
        })
    }

    fn send(&self, address: &str, kind: &str, body: &str, name: &str) -> Result<Response<Body>> {
        let request = self.agent.post(address).header("Content-Type", kind).header("Accept", kind);
        let mut request = request.config().timeout_recv_response(Some(PATIENCE)).build();
        if let Some(token) = self.token.as_ref().filter(|_| address.starts_with(&self.endpoint)) {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        request.send(body).map_err(|error| broken(name, &error))
    }

    /// # Errors
    /// The Hub did not take what was sent.
    fn check_sent(&self, name: &str, mut answer: Response<Body>) -> Result<Response<Body>> {
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let said = answer.body_mut().read_to_string().unwrap_or_default();
        let remedy = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                "; take a token that may write there, and set HF_TOKEN to it"
            }
            _ => "; call this again, and what was sent is not sent twice",
        };
        let said = said.lines().next().map_or_else(String::new, |line| format!(": {line}"));
        Err(Error::file(name, format!("{} answers {status}{said}{remedy}", self.endpoint)))
    }
}

fn broken(name: &str, error: &ureq::Error) -> Error {
    Error::file(
        name,
        format!("the Hub cannot be reached ({error}); call this again, and what was sent is not sent twice"),
    )
}

impl Content {
    fn bytes(&self) -> Result<Vec<u8>> {
        match self {
            Self::Text(text) => Ok(text.clone().into_bytes()),
            Self::File(path) => fs::read(path).map_err(|error| read_error(path, "read", &error)),
        }
    }

    /// The size, and the first bytes.
    fn beginning(&self) -> Result<(u64, Vec<u8>)> {
        match self {
            Self::Text(text) => Ok((text.len() as u64, text.bytes().take(SAMPLE).collect())),
            Self::File(path) => {
                let mut sample = Vec::new();
                let read = File::open(path).and_then(|file| {
                    let size = file.metadata()?.len();
                    file.take(SAMPLE as u64).read_to_end(&mut sample).map(|_| size)
                });
                Ok((read.map_err(|error| read_error(path, "read", &error))?, sample))
            }
        }
    }

    /// In bytes.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn size(&self) -> Result<u64> {
        self.beginning().map(|(size, _)| size)
    }
}

impl<'a> Large<'a> {
    fn of(name: &'a str, path: &'a PathBuf) -> Result<Self> {
        let (mut hash, mut size) = (Sha256::new(), 0);
        let failed = |error: io::Error| read_error(path, "read", &error);
        let mut file = BufReader::with_capacity(BUFFER, File::open(path).map_err(failed)?);
        loop {
            let bytes = file.fill_buf().map_err(failed)?;
            let count = bytes.len();
            if count == 0 {
                break;
            }
            hash.update(bytes);
            size += count as u64;
            file.consume(count);
        }
        let sha256 = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { name, path, size, sha256 })
    }
}

/// Bytes that are shown while they are read.
struct Counted<'a, R> {
    inner: R,
    watch: &'a mut dyn Watch,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.watch.came(count as i64);
        Ok(count)
    }
}

//! A file on its way from the Hub: what is there of it goes on where it broke off, and the whole is checked.

use super::connection::{Hub, Watch};
use super::listing::RemoteFile;
use crate::durable::PathOrigin;
use crate::error::{Error, Result};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;
use ureq::http::StatusCode;

pub(super) const PLACE: PathOrigin = PathOrigin("folder by HF_HUB_CACHE");

/// How often the rest of a file is asked for before more of it comes.
const TRIES: u32 = 6;
/// What is waited before the second time; twice as long before each further.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const BUFFER: usize = 1 << 18;

/// A file, as far as it is here.
pub(super) struct Download<'a> {
    hub: &'a Hub,
    model: &'a str,
    url: &'a str,
    file: &'a RemoteFile,
    path: &'a Path,
    part: File,
    /// Bytes that are here, and their hash so far.
    have: u64,
    hash: Hash,
}

/// Why the rest of a file did not come.
enum Broken {
    /// The network, which may go on.
    Network(String),
    /// What no further try would change.
    Final(Error),
}

/// A hash as the Hub has it.
enum Hash {
    /// Of git's object of the file.
    Sha1(Sha1),
    Sha256(Sha256),
}

impl<'a> Download<'a> {
    /// Opens what is at `path` of the file, or creates it.
    ///
    /// # Errors
    /// A disk that fails.
    pub fn open(
        hub: &'a Hub,
        model: &'a str,
        url: &'a str,
        file: &'a RemoteFile,
        path: &'a Path,
    ) -> Result<Self> {
        let part = OpenOptions::new().read(true).append(true).create(true).open(path);
        let part = part.map_err(|error| PLACE.error(path, "write", &error))?;
        let mut own = Self { hub, model, url, file, path, part, have: 0, hash: Hash::of(file) };
        let mut buffer = vec![0; BUFFER];
        loop {
            match own.part.read(&mut buffer).map_err(|error| PLACE.error(path, "read", &error))? {
                0 => return Ok(own),
                count => own.has(&buffer[..count]),
            }
        }
    }

    /// Fetches the rest.
    ///
    /// # Errors
    /// A network that stays away; a file that is not what the Hub says of it; a disk that fails.
    pub fn finish(mut self, watch: &mut dyn Watch) -> Result<()> {
        let mut tries = 0;
        while self.have < self.file.size {
            let before = self.have;
            let broken = self.rest(watch);
            tries = if self.have > before { 0 } else { tries + 1 };
            match broken {
                Ok(()) => {}
                Err(Broken::Final(error)) => return Err(error),
                Err(Broken::Network(why)) if tries == TRIES => {
                    let (name, size) = (&self.file.name, self.file.size);
                    let goes_on = "call this again, and it goes on from there";
                    let message =
                        format!("{name} broke off after {} of {size} bytes ({why}); {goes_on}", self.have);
                    return Err(Error::file(self.model, message));
                }
                Err(Broken::Network(_)) => sleep(FIRST_WAIT * 2u32.pow(tries)),
            }
        }
        let hash = self.hash.digits();
        if self.have == self.file.size && hash.eq_ignore_ascii_case(&self.file.hash) {
            return self.part.sync_all().map_err(|error| PLACE.error(self.path, "write", &error));
        }
        let _ = fs::remove_file(self.path);
        let RemoteFile { name, size, hash: listed } = self.file;
        let message = format!(
            "{name} has {} bytes and the hash {hash}, where {} lists {size} bytes and {listed}; what came was removed: call this again",
            self.have, self.hub.endpoint
        );
        Err(Error::file(self.model, message))
    }

    /// Asks for the rest once, and keeps what comes.
    fn rest(&mut self, watch: &mut dyn Watch) -> std::result::Result<(), Broken> {
        let network = |error: &dyn std::fmt::Display| Broken::Network(error.to_string());
        let answer = self.hub.get(self.url, self.have).map_err(|error| network(&error))?;
        let status = answer.status();
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            return Err(network(&status));
        }
        let range = answer.headers().get("Content-Range").and_then(|range| range.to_str().ok());
        let goes_on = range.is_some_and(|range| range.starts_with(&format!("bytes {}-", self.have)));
        if status == StatusCode::RANGE_NOT_SATISFIABLE || self.have > 0 && status.is_success() && !goes_on {
            self.begin_again(watch)
                .map_err(|error| Broken::Final(PLACE.error(self.path, "write", &error)))?;
        }
        if status == StatusCode::RANGE_NOT_SATISFIABLE {
            return Err(network(&status));
        }
        self.hub.check(self.model, &answer).map_err(Broken::Final)?;
        // One byte more shows a file that is too long.
        let mut body = answer.into_body().into_reader().take(self.file.size - self.have + 1);
        let mut buffer = vec![0; BUFFER];
        loop {
            let count = match body.read(&mut buffer) {
                Ok(0) if self.have < self.file.size => return Err(network(&"it ended early")),
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(network(&error)),
            };
            let written = self.part.write_all(&buffer[..count]);
            written.map_err(|error| Broken::Final(PLACE.error(self.path, "write", &error)))?;
            self.has(&buffer[..count]);
            watch.came(count as i64);
        }
    }

    fn has(&mut self, bytes: &[u8]) {
        self.have += bytes.len() as u64;
        self.hash.update(bytes);
    }

    /// Drops what is here, which the other side does not go on from.
    fn begin_again(&mut self, watch: &mut dyn Watch) -> io::Result<()> {
        self.part.set_len(0)?;
        watch.came(-(self.have as i64));
        (self.have, self.hash) = (0, Hash::of(self.file));
        Ok(())
    }
}

impl Hash {
    /// That of no bytes of the file yet.
    fn of(file: &RemoteFile) -> Self {
        match file.hash.len() {
            40 => Self::Sha1(Sha1::new_with_prefix(format!("blob {}\0", file.size))),
            _ => Self::Sha256(Sha256::new()),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha1(hash) => hash.update(bytes),
            Self::Sha256(hash) => hash.update(bytes),
        }
    }

    fn digits(self) -> String {
        let bytes = match self {
            Self::Sha1(hash) => hash.finalize().to_vec(),
            Self::Sha256(hash) => hash.finalize().to_vec(),
        };
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

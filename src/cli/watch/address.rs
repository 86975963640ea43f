//! The address at which a run is watched: a port of this machine, unless an address is given.

use crate::error::{Error, Result};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The port of `--watch` without a value.
const PORT: u16 = 4747;

/// The address at which a run is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchAddress {
    /// Where the server listens.
    pub address: SocketAddr,
    /// The name by which browsers ask for it, in addition to its addresses and `localhost`.
    pub name: Option<String>,
    /// Whether a later port may be used if this one is taken, because nobody has asked for it.
    pub may_move: bool,
}

impl WatchAddress {
    /// Parses the value of `--watch`: nothing, a port, or an address or a name with a port. For a name of this machine
    /// the server listens on all of its addresses, since the machine itself may know the name as one of loopback.
    ///
    /// # Errors
    /// Any other text.
    pub fn parse(text: &str) -> Result<Self> {
        let at = |ip: Ipv4Addr, port| SocketAddr::new(IpAddr::V4(ip), port);
        let wrong = || {
            let message =
                format!("expected a port, ADDRESS:PORT or NAME:PORT, found `{text}`; write --watch {PORT}");
            Error::config("--watch", message)
        };
        let local = text.strip_prefix("localhost:").unwrap_or(text);
        let (address, name) = match (local.parse(), text.parse(), text.rsplit_once(':')) {
            _ if text.is_empty() => (at(Ipv4Addr::LOCALHOST, PORT), None),
            (Ok(port), ..) => (at(Ipv4Addr::LOCALHOST, port), None),
            (_, Ok(address), _) => (address, None),
            (.., Some((name, port))) if is_name(name) => {
                (at(Ipv4Addr::UNSPECIFIED, port.parse().map_err(|_| wrong())?), Some(name.to_string()))
            }
            _ => return Err(wrong()),
        };
        Ok(Self { address, name, may_move: text.is_empty() })
    }

    /// Whether an argument after `--watch` is meant as its value, and not as the configuration.
    pub fn is_meant(argument: &str) -> bool {
        let is_part = |c: char| c.is_ascii_hexdigit() || ".:[]".contains(c);
        let is_numeric =
            argument.starts_with(|c: char| c.is_ascii_digit() || c == '[') && argument.chars().all(is_part);
        let ends_in_port = |(name, port): (&str, &str)| is_name(name) && port.parse::<u16>().is_ok();
        is_numeric
            || argument.starts_with("localhost:")
            || argument.rsplit_once(':').is_some_and(ends_in_port)
    }
}

/// In the form of the value of `--watch`.
impl fmt::Display for WatchAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name}:{}", self.address.port()),
            None => self.address.fmt(f),
        }
    }
}

/// Whether `text` may be the name of a machine. A text of digits and dots is an incomplete address.
fn is_name(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    text.chars().all(is_part) && text.contains(|c: char| c.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_one_of_this_machine_alone() {
        let expected = [
            ("", "127.0.0.1:4747", None),
            ("8080", "127.0.0.1:8080", None),
            ("localhost:1", "127.0.0.1:1", None),
            ("0.0.0.0:80", "0.0.0.0:80", None),
            ("[::1]:0", "[::1]:0", None),
            ("gpu-7.lab.example:80", "0.0.0.0:80", Some("gpu-7.lab.example")),
        ];
        for (text, address, name) in expected {
            let WatchAddress { address: found, name: named, may_move } = WatchAddress::parse(text).unwrap();
            assert_eq!((found.to_string().as_str(), named.as_deref()), (address, name));
            assert_eq!(may_move, text.is_empty());
            assert!(text.is_empty() || WatchAddress::is_meant(text), "{text}");
        }
        for text in
            ["127.0.0.1", "99999", "::1", "1.2.3.4:x", "localhost:", "gpu7", "gpu7:", "gpu7:99999", "a/b:1"]
        {
            let error = WatchAddress::parse(text).unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "--watch: expected a port, ADDRESS:PORT or NAME:PORT, found `{text}`; write --watch 4747"
                )
            );
        }
        for text in ["configs/tiny.yaml", "2024.yaml", "--seed", "a.yaml", "C:\\tiny.yaml"] {
            assert!(!WatchAddress::is_meant(text), "{text}");
        }
    }
}

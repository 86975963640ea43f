//! Where a run is watched: a port of this machine, unless an address is written out.

use crate::error::{Error, Result};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The port of `--watch` alone.
const PORT: u16 = 4747;

/// The address that a run is watched at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchAddress(pub SocketAddr);

impl WatchAddress {
    /// Reads the value of `--watch`: nothing, a port, or an address and a port.
    ///
    /// # Errors
    /// Any other text.
    pub fn parse(text: &str) -> Result<Self> {
        let on_loopback = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        let port = text.strip_prefix("localhost:").unwrap_or(text);
        let address = match (text, port.parse::<u16>()) {
            ("", _) => Some(on_loopback(PORT)),
            (_, Ok(port)) => Some(on_loopback(port)),
            (_, Err(_)) => text.parse().ok(),
        };
        address.map(Self).ok_or_else(|| {
            Error::config(
                "--watch",
                format!("expected a port or ADDRESS:PORT, found `{text}`; write --watch {PORT}"),
            )
        })
    }

    /// Whether an argument after `--watch` is meant as its value, and not as the configuration.
    pub fn is_meant(argument: &str) -> bool {
        let is_part = |c: char| c.is_ascii_hexdigit() || ".:[]".contains(c);
        let is_numeric =
            argument.starts_with(|c: char| c.is_ascii_digit() || c == '[') && argument.chars().all(is_part);
        is_numeric || argument.starts_with("localhost:")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_one_of_this_machine_alone() {
        let parsed = |text: &str| WatchAddress::parse(text).map(|WatchAddress(address)| address.to_string());
        let expected = [
            ("", "127.0.0.1:4747"),
            ("8080", "127.0.0.1:8080"),
            ("localhost:1", "127.0.0.1:1"),
            ("0.0.0.0:80", "0.0.0.0:80"),
            ("[::1]:0", "[::1]:0"),
        ];
        for (text, address) in expected {
            assert_eq!(parsed(text).unwrap(), address);
            assert!(text.is_empty() || WatchAddress::is_meant(text), "{text}");
        }
        for text in ["127.0.0.1", "99999", "::1", "1.2.3.4:x", "localhost:"] {
            let error = parsed(text).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("--watch: expected a port or ADDRESS:PORT, found `{text}`; write --watch 4747")
            );
        }
        for text in ["configs/tiny.yaml", "2024.yaml", "--seed", "a.yaml"] {
            assert!(!WatchAddress::is_meant(text), "{text}");
        }
    }
}

//! A request to the page of a run, and the checks that are made before any file is read for it.

use super::WatchAddress;
use crate::report::page::Known;
use std::net::IpAddr;

/// A request with more headers is refused.
const MOST_HEADERS: usize = 64;

/// A request that is answered with a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub what: What,
    /// Whether only the head of the answer is wanted.
    pub is_head: bool,
}

/// The document that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Page,
    /// The data that is new since then; all data without it.
    Data(Option<Known>),
}

/// Why a request is not answered with a document: the status and its line.
pub(super) type Refusal = (u16, &'static str);

/// The request whose head is `bytes`, to `server`; `None` while the head is incomplete.
pub(super) fn parse(bytes: &[u8], server: &WatchAddress) -> Option<Result<Request, Refusal>> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return None,
        Err(_) => return Some(Err((400, "Bad Request"))),
    }
    let (method, target) = (request.method.unwrap_or_default(), request.path.unwrap_or_default());
    let hosts = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
    let hosts: Vec<&str> =
        hosts.map(|header| std::str::from_utf8(header.value).unwrap_or_default()).collect();
    Some(if hosts.len() != 1 || !is_ours(hosts[0], server) {
        Err((403, "Forbidden"))
    } else if method != "GET" && method != "HEAD" {
        Err((405, "Method Not Allowed"))
    } else {
        what(target).map(|what| Request { what, is_head: method == "HEAD" }).ok_or((404, "Not Found"))
    })
}

/// Whether a browser that asks for `host` means this server. A foreign name that resolves to this machine would let the
/// page that it belongs to read the report (DNS rebinding), so `localhost` and the name given by `--watch` are the only
/// names accepted. No name is resolved for an address, so addresses are safe; a server that only this machine can reach
/// has only loopback addresses.
fn is_ours(host: &str, server: &WatchAddress) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => host,
    };
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let is_reached_at = |ip: IpAddr| ip.is_loopback() || !server.address.ip().is_loopback();
    ["localhost"].into_iter().chain(server.name.as_deref()).any(|own| name.eq_ignore_ascii_case(own))
        || bare.parse().is_ok_and(is_reached_at)
}

fn what(target: &str) -> Option<What> {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let number = |key: &str| {
        let values = query.split('&').filter_map(|pair| pair.split_once('='));
        values.filter(|(name, _)| *name == key).find_map(|(_, value)| value.parse().ok())
    };
    match path {
        "/" => Some(What::Page),
        "/data" => {
            let known = number("after").zip(number("generation"));
            Some(What::Data(known.map(|(step, generation)| Known { step, generation })))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &str = "127.0.0.1:4747";

    fn answer(head: &str) -> Result<Request, u16> {
        let parsed = parse(head.as_bytes(), &WatchAddress::parse(HERE).unwrap());
        parsed.expect("a whole head").map_err(|(status, _)| status)
    }

    fn get(target: &str) -> Result<What, u16> {
        answer(&format!("GET {target} HTTP/1.1\r\nHost: {HERE}\r\n\r\n")).map(|request| request.what)
    }

    #[test]
    fn paths_and_questions() {
        assert_eq!(get("/"), Ok(What::Page));
        assert_eq!(get("/?x=1"), Ok(What::Page));
        let known = Known { step: 7, generation: 2 };
        assert_eq!(get("/data?after=7&generation=2"), Ok(What::Data(Some(known))));
        for target in [
            "/data",
            "/data?after=7",
            "/data?after=-1&generation=2",
            "/data?after=x&generation=99999999999999999999",
        ] {
            assert_eq!(get(target), Ok(What::Data(None)), "{target}");
        }
        for target in ["/config.yaml", "/../etc/passwd", "/data/", "http://127.0.0.1:4747/", "*"] {
            assert_eq!(get(target), Err(404), "{target}");
        }
    }

    #[test]
    fn methods() {
        let head = answer(&format!("HEAD / HTTP/1.1\r\nHost: {HERE}\r\n\r\n"));
        assert_eq!(head, Ok(Request { what: What::Page, is_head: true }));
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "get"] {
            assert_eq!(answer(&format!("{method} / HTTP/1.1\r\nHost: {HERE}\r\n\r\n")), Err(405), "{method}");
        }
    }

    #[test]
    fn only_names_of_this_machine_on_loopback() {
        let host = |host: &str| answer(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).is_ok();
        for name in ["localhost", "LOCALHOST:4747", "127.0.0.1", "127.0.0.1:80", "[::1]:4747", "127.3.2.1"] {
            assert!(host(name), "{name}");
        }
        for name in [
            "",
            "evil.example",
            "evil.example:4747",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.7",
        ] {
            assert!(!host(name), "{name}");
        }
        assert_eq!(answer("GET / HTTP/1.1\r\n\r\n"), Err(403));
        assert_eq!(answer("GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"), Err(403));
    }

    #[test]
    fn beyond_loopback_addresses_and_the_name_that_was_given() {
        let answered = |server: &str, host: &str| {
            let head = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            parse(head.as_bytes(), &WatchAddress::parse(server).unwrap()).expect("a whole head").is_ok()
        };
        for server in ["10.0.0.7:80", "0.0.0.0:80", "gpu7:80"] {
            for host in ["10.0.0.7", "10.0.0.7:80", "[fe80::1]:80", "localhost", "127.0.0.1"] {
                assert!(answered(server, host), "{host} of {server}");
            }
            for host in ["evil.example", "gpu7.evil.example", "", "10.0.0.7.evil.example"] {
                assert!(!answered(server, host), "{host} of {server}");
            }
            assert_eq!(answered(server, "GPU7:80"), server == "gpu7:80");
        }
    }

    #[test]
    fn garbage_and_halves() {
        let server = WatchAddress::parse(HERE).unwrap();
        assert_eq!(parse(b"", &server), None);
        assert_eq!(parse(b"GET / HTTP/1.1\r\nHost: local", &server), None);
        for garbage in
            ["\u{0}\u{1}\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9\r\n\r\n", "\u{16}\u{3}\u{1}\r\n\r\n"]
        {
            assert_eq!(answer(garbage), Err(400), "{garbage:?}");
        }
        let many = "X: y\r\n".repeat(MOST_HEADERS + 1);
        assert_eq!(answer(&format!("GET / HTTP/1.1\r\n{many}\r\n")), Err(400));
    }
}

//! Tests of the server over real sockets.

use super::{WatchAddress, Watcher};
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// A server on a free port for a run of two steps.
fn served(folder: &Path) -> Watcher {
    fs::write(folder.join("metrics.jsonl"), "{\"step\":1,\"loss\":5.5}\n{\"step\":2,\"loss\":4.5}\n")
        .unwrap();
    Watcher::start(WatchAddress::parse("0").unwrap(), folder).expect("a free port")
}

fn exchange(address: SocketAddr, request: &[u8]) -> String {
    let mut connection = TcpStream::connect(address).unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    connection.write_all(request).unwrap();
    let mut answer = Vec::new();
    let _ = connection.read_to_end(&mut answer); // a reset after the answer is fine
    String::from_utf8(answer).unwrap()
}

fn ask(address: SocketAddr, method: &str, target: &str) -> String {
    exchange(address, format!("{method} {target} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes())
}

/// The body of an answer; its head contains the length.
fn body(answer: &str) -> &str {
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).expect("a length");
    assert_eq!(length.parse(), Ok(body.len()));
    body
}

fn json(answer: &str) -> serde_json::Value {
    serde_json::from_str(body(answer)).unwrap()
}

#[test]
fn a_page_and_what_is_new() {
    let folder = tempfile::tempdir().unwrap();
    let watcher = served(folder.path());
    let page = ask(watcher.address(), "GET", "/");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/html"), "{}", &page[..200]);
    assert!(body(&page).contains("\"poll_ms\":2000") && body(&page).contains("connect-src 'self'"));
    let head = ask(watcher.address(), "HEAD", "/");
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.ends_with("\r\n\r\n"), "{head}");

    let all = json(&ask(watcher.address(), "GET", "/data"));
    let (run, generation) = (&all["runs"][0], all["runs"][0]["generation"].as_u64().unwrap());
    assert_eq!((run["step"].as_u64(), run["curves"][0]["mean"].as_array().unwrap().len()), (Some(2), 2));
    let target = format!("/data?after=2&generation={generation}");
    let news = json(&ask(watcher.address(), "GET", &target));
    assert_eq!(news["runs"][0]["curves"].as_array().unwrap().len(), 0, "nothing has happened since");
    assert!(news["runs"][0].get("settings").is_none());
    let mut metrics = OpenOptions::new().append(true).open(folder.path().join("metrics.jsonl")).unwrap();
    metrics.write_all(b"{\"step\":3,\"loss\":3.5}\n{\"step\":4,\"lo").unwrap();
    let news = json(&ask(watcher.address(), "GET", &target));
    assert_eq!(news["runs"][0]["curves"][0]["mean"], serde_json::json!([3.5]));
    assert_eq!(news["runs"][0]["after"], 2);
    // A page with another generation gets everything.
    let all = json(&ask(watcher.address(), "GET", "/data?after=2&generation=77"));
    assert_eq!(all["runs"][0]["curves"][0]["mean"], serde_json::json!([5.5, 4.5, 3.5]));
}

#[test]
fn nothing_else_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let address = served(folder.path()).address();
    let watcher = served(folder.path());
    let deadline = Instant::now() + Duration::from_secs(20);
    while address != watcher.address() && TcpStream::connect(address).is_ok() {
        assert!(Instant::now() < deadline, "a dropped server still listens");
    }
    let address = watcher.address();
    let status = |answer: String| answer.lines().next().unwrap_or_default().to_string();
    for target in ["/metrics.jsonl", "/../config.yaml", "/%2e%2e/config.yaml", "//", "/data/x"] {
        assert_eq!(status(ask(address, "GET", target)), "HTTP/1.1 404 Not Found", "{target}");
    }
    let refused = ask(address, "POST", "/data");
    assert!(refused.starts_with("HTTP/1.1 405 Method Not Allowed\r\nAllow: GET, HEAD\r\n"), "{refused}");
    body(&refused);
    let rebound = exchange(address, b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    assert_eq!(status(rebound), "HTTP/1.1 403 Forbidden");
    assert_eq!(
        status(exchange(address, b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")),
        "HTTP/1.1 400 Bad Request"
    );
    let endless = [b"GET / HTTP/1.1\r\nX: ".to_vec(), vec![b'x'; 40_000]].concat();
    assert_eq!(status(exchange(address, &endless)), "HTTP/1.1 431 Request Header Fields Too Large");
    let upload = [
        format!("POST / HTTP/1.1\r\nHost: {address}\r\nContent-Length: 100000\r\n\r\n").into_bytes(),
        vec![b'x'; 100_000],
    ];
    assert_eq!(status(exchange(address, &upload.concat())), "HTTP/1.1 405 Method Not Allowed");
    assert_eq!(status(ask(address, "GET", "/")), "HTTP/1.1 200 OK", "and it still serves");
}

#[test]
fn idle_connections_and_closed_browsers_keep_nobody_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let watcher = served(folder.path());
    let mut idle: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(watcher.address()).unwrap()).collect();
    idle.iter_mut().take(50).for_each(|connection| connection.write_all(b"GET / HT").unwrap());
    // Clients that send requests and do not read.
    for _ in 0..20 {
        let mut connection = TcpStream::connect(watcher.address()).unwrap();
        connection
            .write_all(format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", watcher.address()).as_bytes())
            .unwrap();
    }
    let start = Instant::now();
    assert!(ask(watcher.address(), "GET", "/data").starts_with("HTTP/1.1 200"));
    assert!(start.elapsed() < Duration::from_secs(3), "{:?} for an answer", start.elapsed());
    // Idle connections are closed, so that they do not add up.
    let mut rest = Vec::new();
    idle[99].set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(idle[99].read_to_end(&mut rest).unwrap_or(0), 0);
}

#[test]
fn a_port_in_use_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let watcher = served(folder.path());
    let taken = WatchAddress::parse(&watcher.address().to_string()).unwrap();
    assert!(Watcher::start(taken.clone(), folder.path()).is_none());
    // If nobody has asked for the port, another one is used.
    let another = Watcher::start(WatchAddress { may_move: true, ..taken.clone() }, folder.path()).unwrap();
    assert!((1..=super::NEXT_PORTS).contains(&(another.address().port() - taken.address.port())));
    assert!(ask(another.address(), "GET", "/data").starts_with("HTTP/1.1 200"));
}

#[test]
fn under_a_name_all_addresses_of_the_machine_listen() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("metrics.jsonl"), "{\"step\":1,\"loss\":5.5}\n").unwrap();
    let watcher = Watcher::start(WatchAddress::parse("gpu7:0").unwrap(), folder.path()).unwrap();
    let of = |host: &str| {
        let request = format!("GET /data HTTP/1.1\r\nHost: {host}\r\n\r\n");
        exchange(watcher.own_address(), request.as_bytes())
    };
    assert!(of("gpu7:4747").starts_with("HTTP/1.1 200 OK"));
    let refused = of("evil.example:4747");
    assert!(refused.starts_with("HTTP/1.1 403 Forbidden"), "{refused}");
    assert!(body(&refused).contains("--watch NAME:PORT"), "{refused}");
}

/// A page that has asked recently is told how the run ended when it asks again; without such a page nobody waits.
#[test]
fn an_open_page_sees_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let unwatched = served(folder.path());
    let start = Instant::now();
    drop(unwatched);
    assert!(start.elapsed() < Duration::from_secs(1), "{:?} without a page", start.elapsed());

    let watcher = served(folder.path());
    let address = watcher.address();
    let state = || json(&ask(address, "GET", "/data"))["runs"][0]["state"]["word"].clone();
    assert_eq!(state(), "running");
    let end = std::thread::spawn(move || drop(watcher));
    let event = "{\"time\":\"2026-11-22T10:00:00.5Z\",\"kind\":\"complete\"}\n";
    fs::write(folder.path().join("events.jsonl"), event).unwrap();
    let deadline = Instant::now() + Duration::from_secs(2);
    while state() != "complete" {
        assert!(Instant::now() < deadline, "the page is still told that it runs");
        std::thread::sleep(Duration::from_millis(20));
    }
    end.join().unwrap();
    assert!(TcpStream::connect(address).is_err(), "the port is open after the end");
}

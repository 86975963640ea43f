//! `--watch`: a run is served while it trains, and goes on whatever happens to its page.
//!
//! The page sees the run's end; a port in use, idle connections and garbage do not disturb the run.

use crate::launch::{assert_refused, end, run, start};
use crate::place::Place;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// Few lines: nobody reads the output before the end, and a full pipe would hold the run up.
const QUIET: &str = "--callbacks=[{type: MFLossMonitor, per_print_times: 100}]";

/// The answer to a GET of `target`.
fn get(address: &str, target: &str) -> std::io::Result<String> {
    let mut connection = TcpStream::connect(address)?;
    write!(connection, "GET {target} HTTP/1.1\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The body of an answer, if all of it is there.
fn whole_body(answer: &str) -> Option<&str> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "))?;
    (length.parse() == Ok(body.len())).then_some(body)
}

#[test]
fn a_run_is_served_until_its_page_has_seen_the_end() {
    let place = Place::new();
    let child = start(&mut place.command(&["--watch", "0", QUIET, "--stop_step=100"]));
    let address = place.watched_at();
    let address = address.trim_start_matches("http://").trim_end_matches('/').to_string();
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    assert!(get(&address, "/").expect("a page").contains("Gristmill report"));
    // Browsers that ask and go away, that say nothing, and that talk of something else.
    let mut silent = Vec::new();
    for text in [
        "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "",
        "\u{0}\u{1}garbage\r\n\r\n",
        "POST / HTTP/1.1\r\n\r\n",
    ] {
        let mut connection = TcpStream::connect(&address).expect("a connection");
        connection.write_all(text.as_bytes()).expect("sent");
        silent.push(connection);
    }
    drop(silent.remove(0));
    let (mut steps, mut state) = (0, "running".to_string());
    // The server may end in the middle of an answer.
    while let Some(json) = get(&address, "/data").ok().as_deref().and_then(whole_body) {
        let data: serde_json::Value = serde_json::from_str(json).expect("JSON");
        let run = &data["runs"][0];
        let word = run["state"]["word"].as_str().expect("a state");
        assert!(word == state || word == "complete", "{word} after {state}");
        state = word.to_string();
        let step = run["step"].as_u64().unwrap_or(0);
        assert!(step >= steps, "step {step} after {steps}");
        steps = step;
        std::thread::sleep(Duration::from_millis(50));
    }
    let ended = end(child).succeeded();
    assert_eq!((steps, state.as_str()), (100, "complete"), "what was served last, after:\n{}", ended.stderr);
    assert_eq!(ended.stderr.matches("can be watched").count(), 1);
    assert!(TcpStream::connect(&address).is_err(), "the port is open after the end of the run");
}

#[test]
fn a_port_in_use_is_a_warning() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let place = Place::new();
    let ended = run(&mut place.command(&["--stop_step=2", "--watch", &port])).succeeded();
    let warnings: Vec<&str> =
        ended.stderr.lines().filter(|line| line.starts_with("warning: --watch")).collect();
    let expected = format!(
        "warning: --watch 127.0.0.1:{port}: another program uses this port; choose another. The run goes on and cannot be watched"
    );
    assert_eq!(warnings, [expected]);
    assert_eq!(place.newest().0, 2);
}

#[test]
fn other_addresses_are_warned_of_and_wrong_ones_refused() {
    let place = Place::new();
    let ended = run(&mut place.command(&["--stop_step=2", "--watch=0.0.0.0:0"])).succeeded();
    let warning = "warning: --watch 0.0.0.0:0: anybody who reaches this address can read the run's settings and samples";
    assert!(ended.stderr.lines().any(|line| line == warning), "{}", ended.stderr);
    let refused = run(&mut place.command(&["--run_name=other", "--watch=localhost"]));
    let expected = ["--watch: expected a port, ADDRESS:PORT or NAME:PORT, found `", "write --watch 4747"];
    assert_refused("no port", &refused, &expected);
    assert!(!place.path("other").exists(), "a run that never started left a folder");
}

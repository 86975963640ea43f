//! A connection to the page of a run: one request and one answer, each within a deadline.

use super::Shared;
use super::request::{Refusal, What, parse};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// The longest time that a request may take to arrive.
pub(super) const DEADLINE: Duration = Duration::from_secs(5);

/// The longest time that an answer may take to be read.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// The time for which the bytes after a refused request are read, so that closing the connection does not discard the
/// answer.
const DRAINED: Duration = Duration::from_millis(200);

/// A longer head is refused.
const LONGEST_HEAD: usize = 16 << 10;

/// Headers of every answer: it is not cached, its type not guessed, and it is not shown within other pages.
const HEADERS: &str = "Connection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
    Content-Security-Policy: frame-ancestors 'none'\r\nCross-Origin-Resource-Policy: same-origin\r\nReferrer-Policy: no-referrer\r\n";

/// The text for a browser that has asked under another name.
const FOREIGN_NAME: &str =
    "This run is served under its address alone. Train with --watch NAME:PORT to serve it under a name.";

/// Answers the one request of a connection.
///
/// # Errors
/// The other side has disconnected or is too slow.
pub(super) fn serve(mut connection: TcpStream, shared: &Shared) -> io::Result<()> {
    let (mut head, end) = (Vec::new(), Instant::now() + DEADLINE);
    let request = loop {
        if let Some(parsed) = parse(&head, &shared.server) {
            break parsed;
        }
        if head.len() > LONGEST_HEAD {
            break Err((431, "Request Header Fields Too Large"));
        }
        read_more(&mut connection, &mut head, end)?;
    };
    let request = match request {
        Ok(request) => request,
        Err(refusal) => return refuse(&mut connection, refusal),
    };
    let (kind, body) = match request.what {
        What::Page => ("text/html; charset=utf-8", shared.page()),
        What::Data(known) => ("application/json", shared.data(known)),
    };
    let Ok(body) = body else { return refuse(&mut connection, (503, "Service Unavailable")) };
    let head =
        format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{HEADERS}\r\n", body.len());
    let body = if request.is_head { "" } else { &body };
    send(&mut connection, &[head.as_bytes(), body.as_bytes()])
}

/// Appends the bytes that arrive to `head` until `end`, the deadline of the whole head, however slowly it arrives.
fn read_more(connection: &mut TcpStream, head: &mut Vec<u8>, end: Instant) -> io::Result<()> {
    let mut part = [0; 4096];
    connection.set_read_timeout(Some(left_until(end)?))?;
    let read = connection.read(&mut part)?;
    if read == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    head.extend_from_slice(&part[..read]);
    Ok(())
}

fn refuse(connection: &mut TcpStream, (status, line): Refusal) -> io::Result<()> {
    let allow = if status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
    let body = if status == 403 { FOREIGN_NAME } else { line };
    let length = body.len() + 1;
    let answer = format!(
        "HTTP/1.1 {status} {line}\r\n{allow}Content-Type: text/plain\r\nContent-Length: {length}\r\n{HEADERS}\r\n{body}\n"
    );
    send(connection, &[answer.as_bytes()])?;
    connection.shutdown(Shutdown::Write)?;
    connection.set_read_timeout(Some(DRAINED))?;
    let (end, mut rest) = (Instant::now() + DRAINED, [0; 4096]);
    while Instant::now() < end && connection.read(&mut rest)? > 0 {}
    Ok(())
}

fn send(connection: &mut TcpStream, parts: &[&[u8]]) -> io::Result<()> {
    let end = Instant::now() + ANSWER_DEADLINE;
    for part in parts.iter().flat_map(|part| part.chunks(1 << 16)) {
        connection.set_write_timeout(Some(left_until(end)?))?;
        connection.write_all(part)?;
    }
    connection.flush()
}

/// The time until `end`, which must not be zero to be a timeout.
fn left_until(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

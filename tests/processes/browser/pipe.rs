//! The DevTools protocol over a pair of pipes: commands, their answers, and events, as JSON that ends with a NUL.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long the browser may take for anything: much longer than it does, also on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

pub struct Pipe {
    commands: ChildStdin,
    messages: Receiver<Value>,
    /// Events that nobody has asked for yet.
    events: Vec<Value>,
    last_id: u64,
    /// The file of its standard error.
    log: PathBuf,
}

impl Pipe {
    /// The pipe to a browser, which writes what goes wrong to `log`.
    pub fn to(process: &mut Child, log: PathBuf) -> Self {
        let commands = process.stdin.take().expect("a pipe");
        let mut answers = BufReader::new(process.stdout.take().expect("a pipe"));
        let (sender, messages) = channel();
        // A thread of its own, since a read of a pipe has no deadline. It ends with the browser.
        std::thread::spawn(move || {
            let mut text = Vec::new();
            while answers.read_until(0, &mut text).is_ok_and(|_| text.pop() == Some(0)) {
                let message = serde_json::from_slice(&text).expect("a message of the protocol");
                if sender.send(message).is_err() {
                    return;
                }
                text.clear();
            }
        });
        Self { commands, messages, events: Vec::new(), last_id: 0, log }
    }

    /// Sends a command to the page of `session`, or to the browser itself, and returns its result.
    #[track_caller]
    pub fn call(&mut self, session: Option<&str>, method: &str, params: Value) -> Value {
        self.last_id += 1;
        let mut command = json!({ "id": self.last_id, "method": method, "params": params });
        if let Some(session) = session {
            command["sessionId"] = session.into();
        }
        let sent = self.commands.write_all(format!("{command}\0").as_bytes());
        assert!(sent.is_ok(), "Chromium has ended before {method}:\n{}", self.logged());
        let deadline = Instant::now() + DEADLINE;
        loop {
            let mut message = self.receive(deadline, method);
            if message["id"] == self.last_id {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].take();
            }
            self.events.push(message);
        }
    }

    /// Waits for an event of the page of `session`.
    #[track_caller]
    pub fn wait_for(&mut self, session: &str, event: &str) {
        let deadline = Instant::now() + DEADLINE;
        while self.take(session, &[event]).is_empty() {
            let message = self.receive(deadline, event);
            self.events.push(message);
        }
    }

    /// Takes those events of the page of `session` that have arrived.
    pub fn take(&mut self, session: &str, events: &[&str]) -> Vec<Value> {
        let is_wanted = |message: &Value| {
            message["sessionId"] == session && events.iter().any(|event| message["method"] == *event)
        };
        let (wanted, others) = std::mem::take(&mut self.events).into_iter().partition(is_wanted);
        self.events = others;
        wanted
    }

    #[track_caller]
    fn receive(&mut self, deadline: Instant, what: &str) -> Value {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.messages.recv_timeout(left) {
            Ok(message) => message,
            Err(error) => panic!("Chromium: {what} has not come, {error}:\n{}", self.logged()),
        }
    }

    /// The end of what the browser wrote to its standard error.
    fn logged(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(2000)..]).into_owned()
    }
}

//! A page in the browser: what it shows, what it says, and keys.

use super::pipe::Pipe;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Functions in JavaScript that look at a page as a reader does.
const PROBES: &str = include_str!("probes.js");

/// What a page may wait for before a test gives up.
const DEADLINE: Duration = Duration::from_secs(60);

/// Bit of the Shift key among the modifiers of a key event.
const SHIFT: u32 = 8;

/// How a page is looked at.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// In CSS pixels.
    pub width: u32,
    pub is_dark: bool,
}

/// A page in a window of its own.
pub struct Page<'a> {
    pipe: &'a RefCell<Pipe>,
    session: String,
}

impl<'a> Page<'a> {
    pub(super) fn new(pipe: &'a RefCell<Pipe>) -> Self {
        let call = |method: &str, params| pipe.borrow_mut().call(None, method, params);
        let target = call("Target.createTarget", json!({ "url": "about:blank", "newWindow": true }));
        let whole = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = call("Target.attachToTarget", whole);
        let session = attached["sessionId"].as_str().expect("a session").to_string();
        let page = Self { pipe, session };
        for domain in ["Page", "Runtime", "Log"] {
            page.call(&format!("{domain}.enable"), json!({}));
        }
        // Several windows cannot all have the focus, but each is to behave as if it had.
        page.call("Emulation.setFocusEmulationEnabled", json!({ "enabled": true }));
        page
    }

    pub fn set_view(&self, View { width, is_dark }: View) {
        let metrics = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        let scheme =
            json!({ "name": "prefers-color-scheme", "value": if is_dark { "dark" } else { "light" } });
        self.call("Emulation.setEmulatedMedia", json!({ "features": [scheme] }));
    }

    /// Runs `script` in every document before its own scripts.
    pub fn prepend(&self, script: &str) {
        self.call("Page.addScriptToEvaluateOnNewDocument", json!({ "source": script }));
    }

    /// Opens `address`, until it has loaded and run its script.
    #[track_caller]
    pub fn open(&self, address: &str) {
        const LOADED: &str = "Page.loadEventFired";
        self.pipe.borrow_mut().take(&self.session, &[LOADED]);
        let answer = self.call("Page.navigate", json!({ "url": address }));
        assert!(answer["errorText"].is_null(), "{address}: {}", answer["errorText"]);
        self.pipe.borrow_mut().wait_for(&self.session, LOADED);
    }

    /// The value of an expression in JavaScript, or what it promises.
    #[track_caller]
    pub fn evaluate(&self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let mut answer = self.call("Runtime.evaluate", params);
        let fault = &answer["exceptionDetails"];
        assert!(fault.is_null(), "{expression}: {}", fault["exception"]["description"]);
        answer["result"]["value"].take()
    }

    /// The value of an expression that calls functions of `probes.js`.
    #[track_caller]
    pub fn probe(&self, expression: &str) -> Value {
        self.evaluate(&format!("(() => {{\n{PROBES}\nreturn {expression};\n}})()"))
    }

    /// The text of the element `id`, what is hidden included.
    #[track_caller]
    pub fn text(&self, id: &str) -> String {
        let text = self.evaluate(&format!("document.getElementById({id:?}).textContent"));
        text.as_str().expect("a text").to_string()
    }

    /// Waits until the value of an expression is `wanted`.
    #[track_caller]
    pub fn wait_until(&self, expression: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let value = self.evaluate(expression);
            if wanted(&value) {
                return value;
            }
            assert!(Instant::now() < deadline, "{expression} is still {value}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Presses keys as a user does; `Shift+` before one holds Shift.
    pub fn press(&self, keys: &[&str]) {
        for key in keys {
            let (name, modifiers) = key.strip_prefix("Shift+").map_or((*key, 0), |name| (name, SHIFT));
            let (code, text) = code_and_text(name);
            let down = if text.is_empty() { "rawKeyDown" } else { "keyDown" };
            for kind in [down, "keyUp"] {
                let event = json!({
                    "type": kind, "key": name, "text": text, "modifiers": modifiers, "windowsVirtualKeyCode": code,
                });
                self.call("Input.dispatchKeyEvent", event);
            }
        }
    }

    /// Takes the messages of the console and the exceptions since the last call.
    pub fn console(&self) -> Vec<String> {
        let events = ["Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"];
        let taken = self.pipe.borrow_mut().take(&self.session, &events);
        taken.iter().map(|event| event["params"].to_string()).collect()
    }

    /// Asserts that the page drew this many charts and that nothing went wrong.
    #[track_caller]
    pub fn assert_drawn(&self, charts: usize) {
        let marks = self.evaluate("({ ...document.documentElement.dataset })");
        assert_eq!((&marks["errors"], self.console()), (&Value::Null, vec![]), "errors of the page");
        assert_eq!(marks["charts"], charts.to_string(), "charts");
        assert_eq!(self.probe("emptyCharts()"), json!([]), "charts without a curve");
    }

    /// Keeps a picture of the whole page for whoever changes it, in the folder that `GRISTMILL_SCREENSHOTS` names, if
    /// any.
    pub fn keep_screenshot(&self, name: impl fmt::Display) {
        let Some(folder) = std::env::var_os("GRISTMILL_SCREENSHOTS").map(PathBuf::from) else { return };
        let size = self.evaluate("[innerWidth, document.documentElement.scrollHeight]");
        let clip = json!({ "x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1 });
        let answer =
            self.call("Page.captureScreenshot", json!({ "captureBeyondViewport": true, "clip": clip }));
        std::fs::create_dir_all(&folder).expect("a folder");
        let picture = decoded(answer["data"].as_str().expect("a picture"));
        std::fs::write(folder.join(format!("{name}.png")), picture).expect("a file");
    }

    #[track_caller]
    fn call(&self, method: &str, params: Value) -> Value {
        self.pipe.borrow_mut().call(Some(&self.session), method, params)
    }
}

/// The code of a key by its name, as Windows numbers them, which the protocol follows, and the text that it types.
fn code_and_text(name: &str) -> (u32, &str) {
    match name {
        "Tab" => (9, ""),
        "Enter" => (13, "\r"),
        "Escape" => (27, ""),
        " " => (32, " "),
        "End" => (35, ""),
        "Home" => (36, ""),
        "ArrowLeft" => (37, ""),
        "ArrowUp" => (38, ""),
        "ArrowRight" => (39, ""),
        "ArrowDown" => (40, ""),
        typed => (0, typed),
    }
}

/// The bytes of a text in base64.
fn decoded(text: &str) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let value = |digit: u8| DIGITS.iter().position(|known| *known == digit);
    let values: Vec<usize> = text.bytes().filter_map(value).collect();
    let bytes = values.chunks(4).flat_map(|four| {
        let bits = four.iter().enumerate().fold(0, |bits, (index, value)| bits | value << (18 - 6 * index));
        (0..four.len() - 1).map(move |index| (bits >> (16 - 8 * index)) as u8)
    });
    bytes.collect()
}

//! `generate --chat`: a conversation through the model's chat template, a line of standard input for each message.

use super::output::print;
use crate::data::{ChatTemplate, Codec, DecodeStream};
use crate::error::{Error, Result};
use crate::generate::Settings;
use crate::trained::{TrainedModel, TrainedRun};
use std::io::BufRead;
use std::ops::ControlFlow;
use std::path::Path;

/// A conversation with a model.
pub struct Chat<'a> {
    codec: &'a Codec,
    template: ChatTemplate,
    /// Tokens that the model reads.
    window: usize,
    /// Roles and texts so far.
    messages: Vec<(&'static str, String)>,
}

impl<'a> Chat<'a> {
    /// A conversation that begins with the message `system`, if there is one. It is written by the template in the file `template`, or
    /// else by that of the tokenizer.
    ///
    /// # Errors
    /// There is no template, or it is broken.
    pub fn new(run: &'a TrainedRun, system: Option<&str>, template: Option<&Path>) -> Result<Self> {
        let tokenizer = run.plan.train_dataset.tokenizer.as_ref().map(|tokenizer| tokenizer.file.as_path());
        let template = ChatTemplate::load(template, tokenizer)?;
        let messages = system.iter().map(|text| ("system", text.to_string())).collect();
        Ok(Self { codec: &run.codec, template, window: run.plan.model.seq_length, messages })
    }

    /// Answers each line of standard input until it ends.
    ///
    /// # Errors
    /// A message that the template refuses or the tokenizer cannot encode; a device that fails.
    pub async fn hold(mut self, model: &mut TrainedModel<'_>, settings: &Settings) -> Result<()> {
        let mut settings = settings.clone();
        for line in std::io::stdin().lock().lines() {
            let line = line.map_err(|error| Error::Plan(format!("standard input: {error}")))?;
            if line.trim().is_empty() {
                continue;
            }
            self.messages.push(("user", line));
            let Some(tokens) = self.tokens()? else { continue };
            let (mut stream, mut answer) = (DecodeStream::new(self.codec), String::new());
            let show = |_, token: u32| {
                let is_end = settings.stops.contains(&token);
                let part = if is_end { String::new() } else { stream.push(token) };
                answer.push_str(&part);
                if part.is_empty() { ControlFlow::Continue(()) } else { print(&part) }
            };
            model.generate(&[tokens], &settings, show).await?;
            let rest = stream.finish();
            answer.push_str(&rest);
            if print(&(rest + "\n")).is_break() {
                break;
            }
            self.messages.push(("assistant", answer));
            settings.seed = settings.seed.wrapping_add(1); // another message, other draws
        }
        Ok(())
    }

    /// The conversation as tokens that leave room for an answer. Where it is too long, the oldest exchanges are forgotten; `None` where
    /// the last message alone is.
    fn tokens(&mut self) -> Result<Option<Vec<u32>>> {
        let first = self.messages.iter().take_while(|(role, _)| *role == "system").count();
        let mut is_told = false;
        loop {
            let messages: Vec<(&str, &str)> =
                self.messages.iter().map(|(role, text)| (*role, text.as_str())).collect();
            let text = self.template.prompt(&messages).map_err(Error::Plan)?;
            let tokens = self.codec.encode(&text)?;
            if tokens.len() < self.window {
                return Ok(Some(tokens));
            }
            if self.messages.len() - first < 3 {
                eprintln!(
                    "notice: the message makes {} tokens, and the model reads {}; write a shorter one",
                    tokens.len(),
                    self.window
                );
                self.messages.pop();
                return Ok(None);
            }
            if !std::mem::replace(&mut is_told, true) {
                eprintln!(
                    "notice: the context of {} tokens is full; the oldest messages are forgotten",
                    self.window
                );
            }
            self.messages.drain(first..first + 2);
        }
    }
}

//! `generate --chat`: a conversation through the model's chat template, a line of standard input for each message.

use super::output::print;
use crate::data::{ChatTemplate, Codec, DecodeStream};
use crate::device::Gpu;
use crate::error::{Error, Result};
use crate::infer::GenerationSettings;
use crate::infer::{InferenceModel, OpenedModel};
use std::io::{BufRead, IsTerminal};
use std::ops::ControlFlow;
use std::path::Path;

/// The input that makes the program forget the conversation, except for the system message.
const RESET: &str = "/reset";
/// The input that ends the conversation.
const LEAVE: &str = "/exit";
const SYSTEM: &str = "system";
/// Tokens of the first context. A longer context costs memory, and time for each pass over it, before a conversation
/// needs it.
const FIRST_CONTEXT: usize = 1024;

/// A conversation with a model.
pub struct Chat<'a> {
    codec: &'a Codec,
    template: ChatTemplate,
    /// Roles and texts so far.
    messages: Vec<(&'static str, String)>,
}

impl<'a> Chat<'a> {
    /// A conversation that begins with the message `system`, if there is one. It is written by the template in the file
    /// `template`, or otherwise by the template of the tokenizer.
    ///
    /// # Errors
    /// There is no template, or it is broken.
    pub fn new(run: &'a OpenedModel, system: Option<&str>, template: Option<&Path>) -> Result<Self> {
        let tokenizer = run.plan.settings.train_dataset.tokenizer_file();
        let template = ChatTemplate::load(run.chat_form(template, false).template.as_deref(), tokenizer)?;
        let messages = system.iter().map(|text| (SYSTEM, text.to_string())).collect();
        Ok(Self { codec: &run.codec, template, messages })
    }

    /// The token that ends a turn in the template, if there is one.
    pub fn turn_end(&self) -> Option<u32> {
        self.template.turn_end(self.codec)
    }

    /// Answers each line of standard input until the input ends, reading at most `limit` tokens of the conversation.
    ///
    /// # Errors
    /// A message that the template refuses or the tokenizer cannot encode; a device that fails.
    pub async fn hold(
        mut self,
        gpu: &Gpu,
        run: &OpenedModel,
        limit: usize,
        settings: &GenerationSettings,
    ) -> Result<()> {
        let mut settings = settings.clone();
        let mut context = Context { gpu, run, limit, window: 0, model: None };
        context.grow(settings.tokens).await?;
        let is_typed = std::io::stdin().is_terminal();
        if is_typed {
            eprintln!("{RESET} begins again, {LEAVE} or the end of the input leaves");
        }
        let mut lines = std::io::stdin().lock().lines();
        loop {
            if is_typed {
                eprint!("> ");
            }
            let Some(line) = lines.next() else { break };
            let line = line.map_err(|error| Error::Plan(format!("standard input: {error}")))?;
            // Piped input does not appear on the screen, so it is printed to show where a turn ends and the next
            // begins.
            let is_shown = !is_typed && !["", LEAVE].contains(&line.trim());
            if is_shown && print(&format!("> {line}\n")).is_break() {
                break;
            }
            match line.trim() {
                "" => continue,
                LEAVE => break,
                RESET => {
                    self.messages.retain(|(role, _)| *role == SYSTEM);
                    continue;
                }
                _ => self.messages.push(("user", line)),
            }
            let Some(tokens) = self.read(&mut context, settings.tokens).await? else { continue };
            let Some(model) = &mut context.model else { continue };
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
            settings.seed = settings.seed.wrapping_add(1); // another message gets other draws
        }
        Ok(())
    }

    /// The conversation as tokens. Grows the model in `context`, as far as possible, to have room for them and for an
    /// answer of `more` tokens.
    async fn read(&mut self, context: &mut Context<'_>, more: usize) -> Result<Option<Vec<u32>>> {
        loop {
            let Some(tokens) = self.tokens(context.limit)? else { return Ok(None) };
            context.grow(tokens.len().saturating_add(more)).await?;
            if tokens.len() < context.limit || context.limit <= 1 {
                return Ok(Some(tokens));
            }
        }
    }

    /// The conversation as tokens that leave room for an answer. If it is too long, the oldest exchanges are forgotten;
    /// `None` if the last message alone is too long.
    fn tokens(&mut self, window: usize) -> Result<Option<Vec<u32>>> {
        let first = self.messages.iter().take_while(|(role, _)| *role == SYSTEM).count();
        let mut is_told = false;
        loop {
            let messages: Vec<(&str, &str)> =
                self.messages.iter().map(|(role, text)| (*role, text.as_str())).collect();
            let text = self.template.prompt(&messages).map_err(Error::Plan)?;
            let tokens = self.codec.encode(&text)?;
            if tokens.len() < window {
                return Ok(Some(tokens));
            }
            if self.messages.len() - first < 3 {
                eprintln!(
                    "notice: the message makes {} tokens, and the model reads {}; write a shorter one",
                    tokens.len(),
                    window
                );
                self.messages.pop();
                return Ok(None);
            }
            if !std::mem::replace(&mut is_told, true) {
                eprintln!(
                    "notice: the context of {window} tokens is full; the oldest messages are forgotten"
                );
            }
            self.messages.drain(first..first + 2);
        }
    }
}

/// A model on a device, whose context grows with the conversation.
struct Context<'a> {
    gpu: &'a Gpu,
    run: &'a OpenedModel,
    /// Most tokens that it can read.
    limit: usize,
    /// Tokens that it can read at present.
    window: usize,
    model: Option<InferenceModel<'a>>,
}

impl Context<'_> {
    /// Makes room for `tokens` tokens, as far as the limit allows. If memory has less room, that becomes the limit from
    /// now on.
    async fn grow(&mut self, tokens: usize) -> Result<()> {
        let wanted = tokens.min(self.limit);
        if wanted <= self.window && self.model.is_some() {
            return Ok(());
        }
        let window = wanted.next_power_of_two().max(FIRST_CONTEXT).min(self.limit);
        self.model = None; // its memory is needed
        let (model, fitting) = InferenceModel::load_fitting(self.gpu, self.run, 1, window, None).await?;
        if fitting < window {
            eprintln!("notice: the adapter has room for a context of {fitting} tokens, of {}", self.limit);
            self.limit = fitting;
        }
        (self.model, self.window) = (Some(model), fitting);
        Ok(())
    }
}

//! Chat templates: Jinja, with the whitespace rules of `transformers` and what it adds to Jinja: `tojson`, `raise_exception`,
//! `strftime_now` and `{% generation %}`.
//!
//! What the assistant wrote is the text that a turn adds after its generation prompt, or what `{% generation %}`
//! blocks contain, which are replaced by marks that the conversation lacks. A rendering that needs more than 20
//! million instructions or 64 MiB is an error.

use std::ops::RangeInclusive;
use std::path::Path;

use minijinja::{Environment, Error as TemplateError, ErrorKind, Value as Template};
use serde_json::Value;

use super::clock;
use super::conversation::{Conversation, Message};
use super::json::to_json;
use crate::data::files;
use crate::durable::read_json;
use crate::error::{Error, Result, foreign};

/// What a template writes before and after what its `{% generation %}` block contains: two of Unicode's noncharacters, which hardly a
/// text has.
pub(super) type Marks = [char; 2];

/// The noncharacters among which a conversation finds two that it lacks.
const NONCHARACTERS: RangeInclusive<char> = '\u{fdd0}'..='\u{fdef}';

/// The variables through which a template writes its marks.
const MARK_NAMES: [&str; 2] = ["__generation_start__", "__generation_end__"];

/// Most instructions of one rendering. The longest conversations need some hundred thousand; a template that never ends is stopped
/// within seconds.
const FUEL: u64 = 20_000_000;

/// Most bytes that one rendering writes.
const LONGEST_TEXT: usize = 64 << 20;

/// A chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// `bos_token` and the like.
    special_tokens: Vec<(String, String)>,
    /// Whether it says by `{% generation %}` what the assistant writes.
    pub(super) has_generation: bool,
    /// Noncharacters that it writes itself.
    taken: String,
}

const NAME: &str = "the chat template";

impl ChatTemplate {
    /// Loads the template `file`, or else that of `tokenizer`: `chat_template.jinja` beside it, or `chat_template` in its
    /// `tokenizer_config.json`, which also says what `bos_token` and `eos_token` are.
    ///
    /// # Errors
    /// If there is no template, or it is no Jinja.
    pub fn load(file: Option<&Path>, tokenizer: Option<&Path>) -> Result<Self> {
        let folder = tokenizer.map(|path| path.parent().unwrap_or(Path::new("")));
        let config = folder.map(|folder| folder.join("tokenizer_config.json")).filter(|path| path.is_file());
        let config: Option<(_, Value)> =
            config.map(|path| Ok((path.clone(), read_json(&path, "JSON", "fetch it again")?))).transpose()?;
        let beside = folder.map(|folder| folder.join("chat_template.jinja")).filter(|path| path.is_file());
        let named = file.map(Path::to_path_buf).or(beside);
        let (path, source) = match (named, &config) {
            (Some(path), _) => (path.clone(), files::text_of(&path)?),
            (None, Some((path, config))) => match source_in(config) {
                Some(source) => (path.clone(), source),
                None => return Err(none(path, "has no `chat_template`")),
            },
            (None, None) => {
                return Err(match folder {
                    Some(folder) => none(folder, "has no chat template"),
                    None => none(Path::new("the data set"), "has no tokenizer and no chat template"),
                });
            }
        };
        let special_tokens = config.map(|(_, config)| special_tokens(&config)).unwrap_or_default();
        Self::parse(&source, special_tokens).map_err(|error| {
            let line = error.line().map_or(String::new(), |line| format!("line {line}: "));
            Error::file(path, format!("{line}is no chat template ({}); correct it", one_line(&error)))
        })
    }

    /// The template `source`, with the text of special tokens such as `bos_token`.
    ///
    /// # Errors
    /// If it is no Jinja.
    pub fn parse(
        source: &str,
        special_tokens: Vec<(String, String)>,
    ) -> std::result::Result<Self, TemplateError> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", to_json);
        let refusal = |message: String| TemplateError::new(ErrorKind::InvalidOperation, message);
        environment
            .add_function("raise_exception", move |message: String| Err::<String, _>(refusal(message)));
        environment.add_function("strftime_now", move |format: String| {
            clock::now().and_then(|now| clock::strftime(&format, now)).map_err(refusal)
        });
        let marked = mark_generation(source);
        let has_generation = marked != source;
        foreign(|| environment.add_template_owned(NAME, marked))
            .map_err(|panic| TemplateError::new(ErrorKind::SyntaxError, panic))??;
        let texts = special_tokens.iter().map(|(_, text)| text.as_str()).chain([source]);
        let taken = texts.flat_map(str::chars).filter(|character| NONCHARACTERS.contains(character));
        Ok(Self { environment, taken: taken.collect(), special_tokens, has_generation })
    }

    /// Marks that neither the conversation nor the template has.
    ///
    /// # Errors
    /// If they have all that there are.
    pub(super) fn marks(&self, conversation: &Conversation) -> std::result::Result<Marks, String> {
        let values: Vec<&Template> =
            conversation.messages.iter().map(|message| &message.value).chain(&conversation.tools).collect();
        let text =
            serde_json::to_string(&values).map_err(|error| format!("cannot be written as JSON ({error})"))?;
        let mut free =
            NONCHARACTERS.filter(|character| !text.contains(*character) && !self.taken.contains(*character));
        free.next().zip(free.next()).map(|(start, end)| [start, end]).ok_or_else(|| {
            "has the characters U+FDD0 to U+FDEF, which no text needs and by which the assistant's turns are found; remove them"
                .to_string()
        })
    }

    /// The text of a conversation of (role, content), with the prompt of the assistant's next turn.
    ///
    /// # Errors
    /// If the template refuses the conversation; the message says why.
    pub fn prompt(&self, messages: &[(&str, &str)]) -> std::result::Result<String, String> {
        let message = |(role, content): &(&str, &str)| Message {
            value: [("role", *role), ("content", *content)].into_iter().collect(),
            is_learned: false,
            start: None,
        };
        let conversation = Conversation { messages: messages.iter().map(message).collect(), tools: None };
        let marks = self.marks(&conversation)?;
        let text = self.render(&conversation, messages.len(), true, marks)?;
        Ok(text.replace(marks, ""))
    }

    /// The text of the first `count` messages, with the prompt of the assistant's next turn if `asks`, and with `marks` around what
    /// `{% generation %}` blocks contain.
    ///
    /// # Errors
    /// If the template refuses the conversation, or takes too long for it or writes too much; the message says why.
    pub(super) fn render(
        &self,
        conversation: &Conversation,
        count: usize,
        asks: bool,
        marks: Marks,
    ) -> std::result::Result<String, String> {
        let messages: Vec<Template> =
            conversation.messages[..count].iter().map(|Message { value, .. }| value.clone()).collect();
        let fixed = [
            ("messages", Template::from(messages)),
            ("tools", conversation.tools.clone().unwrap_or(Template::from(()))),
            ("add_generation_prompt", Template::from(asks)),
        ];
        let tokens =
            self.special_tokens.iter().map(|(name, text)| (name.as_str(), Template::from(text.as_str())));
        let marks =
            MARK_NAMES.into_iter().zip(marks).map(|(name, mark)| (name, Template::from(mark.to_string())));
        let context: Template = fixed.into_iter().chain(tokens).chain(marks).collect();
        let mut text = Text(Vec::new());
        let render = || self.environment.get_template(NAME)?.render_captured_to(context, &mut text).map(drop);
        let rendered = foreign(render).unwrap_or_else(|panic| {
            Err(TemplateError::new(ErrorKind::InvalidOperation, format!("its interpreter fails: {panic}")))
        });
        let line =
            |error: &TemplateError| error.line().map_or(String::new(), |line| format!(" in its line {line}"));
        match rendered {
            Ok(()) => Ok(String::from_utf8_lossy(&text.0).into_owned()),
            Err(error) if error.kind() == ErrorKind::OutOfFuel => Err(format!(
                "the chat template does not end within {FUEL} instructions for it{}; correct the template",
                line(&error)
            )),
            Err(error) if error.kind() == ErrorKind::WriteFailure => Err(format!(
                "the chat template writes more than {} MiB for it{}; correct the template",
                LONGEST_TEXT >> 20,
                line(&error)
            )),
            Err(error) => Err(format!(
                "the chat template refuses it{}: {}; correct the record or the template",
                line(&error),
                one_line(&error)
            )),
        }
    }
}

/// What a template has written.
struct Text(Vec<u8>);

impl std::io::Write for Text {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > LONGEST_TEXT {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Replaces `{% generation %}`, which Jinja does not know, by a block that writes [`Marks`], with the same whitespace rules.
fn mark_generation(source: &str) -> String {
    let mark = |number: usize| format!("{{{{ {} }}}}", MARK_NAMES[number]);
    let mut marked = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start + 2..].find("%}") else { break };
        let end = start + 2 + length + 2;
        let inner = &rest[start + 2..end - 2];
        let word = inner.trim_matches(['-', '+']).trim();
        let left = if inner.starts_with('-') { "-" } else { "" };
        let right = if inner.ends_with('-') { "-" } else { "" };
        marked.push_str(&rest[..start]);
        match word {
            "generation" => {
                marked.push_str(&format!(
                    "{{%{left} if true %}}{start}{{% if true {right}%}}",
                    start = mark(0)
                ));
            }
            "endgeneration" => {
                marked.push_str(&format!("{{%{left} endif %}}{end}{{% endif {right}%}}", end = mark(1)));
            }
            _ => marked.push_str(&rest[start..end]),
        }
        rest = &rest[end..];
    }
    marked.push_str(rest);
    marked
}

fn none(path: &Path, what: &str) -> Error {
    let remedy = "name a Jinja file: by --chat-template where a command has that flag, or by `chat_template` under the data_loader";
    Error::file(path, format!("{what}, which conversations need; {remedy}"))
}

/// The template of a `tokenizer_config.json`: text, or the default one of several.
fn source_in(config: &Value) -> Option<String> {
    match config.get("chat_template")? {
        Value::String(source) => Some(source.clone()),
        Value::Array(templates) => {
            let default = templates.iter().find(|template| template["name"] == "default")?;
            default["template"].as_str().map(str::to_string)
        }
        _ => None,
    }
}

/// `bos_token` and the like, which are text or an object with `content`.
fn special_tokens(config: &Value) -> Vec<(String, String)> {
    let entries = config.as_object().into_iter().flatten().filter(|(key, _)| key.ends_with("_token"));
    entries
        .filter_map(|(key, value)| {
            let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
            Some((key.clone(), text.to_string()))
        })
        .collect()
}

fn one_line(error: &TemplateError) -> String {
    let text = error.detail().map_or_else(|| error.kind().to_string(), str::to_string);
    text.replace('\n', " ")
}

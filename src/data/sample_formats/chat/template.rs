//! Chat templates: Jinja, with the whitespace rules of `transformers` and its additions to Jinja: `tojson`,
//! `raise_exception`, `strftime_now` and `{% generation %}`.
//!
//! The assistant's text is what a turn adds after its generation prompt, or the content of `{% generation %}` blocks,
//! which are replaced by marks that the conversation lacks. A rendering that needs more than 20 million instructions or
//! 64 MiB is an error.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error as TemplateError, ErrorKind, Value as Template};
use serde_json::Value;

use super::clock;
use super::conversation::Conversation;
use super::generation::{MARK_NAMES, mark_generation};
use super::json::to_json;
use super::message::{Message, REASONING};
use super::python;
use super::words::Words;
use crate::data::codec::Codec;
use crate::data::files;
use crate::data::tokenizer::SpecialTokens;
use crate::error::{Error, Result, foreign};

/// The marks that a template writes before and after the content of its `{% generation %}` blocks, and a mark by which
/// a text is found again: three of Unicode's noncharacters, which hardly any text contains.
pub(super) type Marks = [char; 3];

/// The noncharacters among which marks are chosen that a conversation lacks.
const NONCHARACTERS: RangeInclusive<char> = '\u{fdd0}'..='\u{fdef}';

/// Most instructions of one rendering. The longest conversations need some hundred thousand, so a template that never
/// ends is stopped within seconds.
const FUEL: u64 = 20_000_000;

/// Most bytes that one rendering writes.
const LONGEST_TEXT: usize = 64 << 20;

/// A chat template.
///
/// # Examples
///
/// ```
/// use gristmill::data::ChatTemplate;
///
/// let source = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{{ eos_token }}{% endfor %}
/// {%- if add_generation_prompt %}<assistant>{% endif %}";
/// let template = ChatTemplate::parse(source, vec![("eos_token".to_string(), "</s>".to_string())])?;
/// assert_eq!(template.prompt(&[("user", "Why mills?")])?, "<user>Why mills?</s><assistant>");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// The keys that the template names.
    keys: Words,
    /// The variables that the template reads without having set them before.
    variables: HashSet<String>,
    /// How the special tokens of the tokenizer are spelt, one of which ends a turn.
    pub(super) ends: Vec<String>,
    /// `bos_token` and the like.
    special_tokens: Vec<(String, String)>,
    /// Whether the template marks with `{% generation %}` what the assistant writes, without tools and with them.
    has_generation: [bool; 2],
    /// Noncharacters that the template writes itself.
    taken: String,
    /// The sources and special tokens of which the template was made.
    origin: String,
}

/// The names of the templates for conversations without tools, and with them.
const NAMES: [&str; 2] = ["the chat template", "the chat template with tools"];

impl ChatTemplate {
    /// Loads the template `file`, or else the template of `tokenizer`: `chat_template.jinja` beside it, or
    /// `chat_template` in its `tokenizer_config.json`. That file and the others beside the tokenizer also say what
    /// `bos_token` and `eos_token` are.
    ///
    /// # Errors
    /// If there is no template, or it is not valid Jinja.
    pub fn load(file: Option<&Path>, tokenizer: Option<&Path>) -> Result<Self> {
        Self::find(file, tokenizer)?.ok_or_else(|| no_template(tokenizer))
    }

    /// As [`load`](Self::load), but `None` if there is no template.
    ///
    /// # Errors
    /// If the template is not valid Jinja.
    pub fn find(file: Option<&Path>, tokenizer: Option<&Path>) -> Result<Option<Self>> {
        let special = tokenizer.map(SpecialTokens::beside).transpose()?.unwrap_or_default();
        let Some((path, sources)) = TemplateSources::find(file, tokenizer, &special)? else {
            return Ok(None);
        };
        Self::of(&sources, special.named).map(Some).map_err(|error| {
            let line = error.line().map_or(String::new(), |line| format!("line {line}: "));
            Error::file(path, format!("{line}is no chat template ({}); correct it", one_line(&error)))
        })
    }

    /// The source of the template for conversations without tools that [`find`](Self::find) finds.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub(crate) fn source(file: Option<&Path>, tokenizer: Option<&Path>) -> Result<Option<String>> {
        let special = tokenizer.map(SpecialTokens::beside).transpose()?.unwrap_or_default();
        Ok(TemplateSources::find(file, tokenizer, &special)?.map(|(_, sources)| sources.default))
    }

    /// Sets the spellings of the tokenizer's special tokens.
    pub(super) fn ending(self, ends: Vec<String>) -> Self {
        Self { ends, ..self }
    }

    /// The template `source`, with the texts of special tokens such as `bos_token`.
    ///
    /// # Errors
    /// If `source` is not valid Jinja.
    pub fn parse(
        source: &str,
        special_tokens: Vec<(String, String)>,
    ) -> std::result::Result<Self, TemplateError> {
        Self::of(&TemplateSources { default: source.to_string(), with_tools: None }, special_tokens)
    }

    fn of(
        sources: &TemplateSources,
        special_tokens: Vec<(String, String)>,
    ) -> std::result::Result<Self, TemplateError> {
        let mut environment = Environment::new();
        environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        environment.set_fuel(Some(FUEL));
        python::extend(&mut environment);
        environment.add_filter("tojson", to_json);
        let refusal = |message: String| TemplateError::new(ErrorKind::InvalidOperation, message);
        environment
            .add_function("raise_exception", move |message: String| Err::<String, _>(refusal(message)));
        environment.add_function("strftime_now", move |format: String| {
            clock::now().and_then(|now| clock::strftime(&format, now)).map_err(refusal)
        });
        let with_tools = sources.with_tools.as_ref().unwrap_or(&sources.default);
        let both = [&sources.default, with_tools];
        let mut has_generation = [false; 2];
        for ((name, source), is_marked) in NAMES.into_iter().zip(both).zip(&mut has_generation) {
            // Line ends as Jinja2 reads them.
            let source = source.replace("\r\n", "\n").replace('\r', "\n");
            let marked = mark_generation(&source);
            *is_marked = marked != source;
            foreign(|| environment.add_template_owned(name, marked))
                .map_err(|panic| TemplateError::new(ErrorKind::SyntaxError, panic))??;
        }
        let texts = special_tokens.iter().map(|(_, text)| text.as_str()).chain(both.map(String::as_str));
        let taken = texts.flat_map(str::chars).filter(|character| NONCHARACTERS.contains(character));
        let (taken, keys) = (taken.collect(), Words::of(both.map(String::as_str)));
        let origin = format!("{sources:?} {special_tokens:?}");
        let mut variables = HashSet::new();
        for name in NAMES {
            variables.extend(environment.get_template(name)?.undeclared_variables(false));
        }
        Ok(Self {
            environment,
            taken,
            special_tokens,
            has_generation,
            keys,
            variables,
            origin,
            ends: Vec::new(),
        })
    }

    /// A text that identifies everything that decides how conversations are written, including today's date if the
    /// template asks for it.
    pub(in crate::data) fn identity(&self) -> String {
        let asks = self.origin.contains("strftime_now");
        let today = asks.then(|| clock::now().map(|now| now.date_naive().to_string()));
        format!("{} {today:?}", self.origin)
    }

    /// Whether the template marks with `{% generation %}` what the assistant writes in a conversation.
    pub(super) fn has_generation(&self, conversation: &Conversation) -> bool {
        self.has_generation[usize::from(conversation.tools.is_some())]
    }

    /// Whether the template names a key of a message. For a name of reasoning: whether it names any of the keys under
    /// which it gets the reasoning.
    pub(super) fn names(&self, key: &str) -> bool {
        match REASONING.contains(&key) {
            true => REASONING[..2].iter().any(|key| self.keys.contains(key)),
            false => self.keys.contains(key),
        }
    }

    /// Whether the template reads a variable.
    pub(super) fn reads(&self, variable: &str) -> bool {
        self.variables.contains(variable)
    }

    /// Marks that occur neither in the conversation nor in the template.
    ///
    /// # Errors
    /// If they contain all characters that could be marks.
    pub(super) fn marks(&self, conversation: &Conversation) -> std::result::Result<Marks, String> {
        let values: Vec<&Template> =
            conversation.messages.iter().map(|message| &message.value).chain(&conversation.tools).collect();
        let text =
            serde_json::to_string(&values).map_err(|error| format!("cannot be written as JSON ({error})"))?;
        let mut free =
            NONCHARACTERS.filter(|character| !text.contains(*character) && !self.taken.contains(*character));
        let [Some(start), Some(end), Some(found)] = [free.next(), free.next(), free.next()] else {
            return Err(
                "has the characters U+FDD0 to U+FDEF, which no text needs and by which the assistant's turns are found; remove them"
                    .to_string(),
            );
        };
        Ok([start, end, found])
    }

    /// The text of a conversation, given as (role, content), with the prompt of the assistant's next turn.
    ///
    /// # Errors
    /// If the template refuses the conversation; the message says why.
    pub fn prompt(&self, messages: &[(&str, &str)]) -> std::result::Result<String, String> {
        let messages: Vec<Message> =
            messages.iter().map(|(role, content)| Message::new(role, content)).collect();
        let count = messages.len();
        let conversation = Conversation { messages, ..Conversation::default() };
        let marks = self.marks(&conversation)?;
        let text = self.render(&conversation, count, true, marks)?;
        Ok(text.replace(marks, ""))
    }

    /// The token that ends a turn of the assistant, at which a chat stops: the first special token that is written
    /// after the assistant's text, even if it begins the next turn. `None` if there is none, or the template refuses
    /// the test conversation.
    pub fn turn_end(&self, codec: &Codec) -> Option<u32> {
        const SAID: &str = "The mill grinds.";
        let turns = [("user", "Why mills?"), ("assistant", SAID), ("user", "What else?")];
        let specials = codec.special_texts();
        [2, 3].into_iter().find_map(|count| {
            let messages: Vec<Message> =
                turns[..count].iter().map(|(role, said)| Message::new(role, said)).collect();
            let conversation = Conversation { messages, ..Conversation::default() };
            let marks = self.marks(&conversation).ok()?;
            let text = self.render(&conversation, count, false, marks).ok()?.replace(marks, "");
            let after = &text[text.rfind(SAID)? + SAID.len()..];
            let places = specials.iter().filter_map(|special| Some((after.find(special.as_str())?, special)));
            // If two special tokens begin at the same place, the longer one is meant.
            let (_, first) = places.min_by_key(|(place, special)| (*place, usize::MAX - special.len()))?;
            codec.token_id(first)
        })
    }

    /// The text of the first `count` messages, with the prompt of the assistant's next turn if `asks`, and with `marks`
    /// around the content of `{% generation %}` blocks.
    ///
    /// # Errors
    /// If the template refuses the conversation, takes too long for it or writes too much; the message says why.
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
            ("documents", Template::from(())),
            ("add_generation_prompt", Template::from(asks)),
        ];
        let tokens =
            self.special_tokens.iter().map(|(name, text)| (name.as_str(), Template::from(text.as_str())));
        let marks =
            MARK_NAMES.into_iter().zip(marks).map(|(name, mark)| (name, Template::from(mark.to_string())));
        let variables = conversation.variables.iter().map(|(name, value)| (name.as_str(), value.clone()));
        let context = Template::from_pairs(fixed.into_iter().chain(tokens).chain(variables).chain(marks));
        let mut text = Text(Vec::new());
        let name = NAMES[usize::from(conversation.tools.is_some())];
        let render = || self.environment.get_template(name)?.render_captured_to(context, &mut text).map(drop);
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

/// The templates of a tokenizer.
#[derive(Debug)]
struct TemplateSources {
    default: String,
    /// The template for conversations with tools, if it is another.
    with_tools: Option<String>,
}

impl TemplateSources {
    /// The templates of the file `file`, or else those of `tokenizer`, and where they are.
    fn find(
        file: Option<&Path>,
        tokenizer: Option<&Path>,
        special: &SpecialTokens,
    ) -> Result<Option<(PathBuf, Self)>> {
        let beside = tokenizer.map(|tokenizer| tokenizer.with_file_name("chat_template.jinja"));
        let named = file.map(Path::to_path_buf).or(beside.filter(|path| path.is_file()));
        Ok(match (named, tokenizer) {
            (Some(path), _) => {
                let other = path.with_file_name("additional_chat_templates").join("tool_use.jinja");
                let other = Some(other).filter(|other| file.is_none() && other.is_file());
                let with_tools = other.map(|other| files::text_of(&other)).transpose()?;
                let sources = Self { default: files::text_of(&path)?, with_tools };
                Some((path, sources))
            }
            (None, Some(tokenizer)) => Self::of(&special.config)
                .map(|sources| (tokenizer.with_file_name("tokenizer_config.json"), sources)),
            (None, None) => None,
        })
    }

    /// The templates of a `tokenizer_config.json`: a single text, or several with a name each, of which `transformers`
    /// uses these two.
    fn of(config: &Value) -> Option<Self> {
        match config.get("chat_template")? {
            Value::String(source) => Some(Self { default: source.clone(), with_tools: None }),
            Value::Array(templates) => {
                let named = |name: &str| {
                    let found = templates.iter().find(|template| template["name"] == name)?;
                    found["template"].as_str().map(str::to_string)
                };
                Some(Self {
                    default: named("default").or_else(|| named("tool_use"))?,
                    with_tools: named("tool_use"),
                })
            }
            _ => None,
        }
    }
}

/// The error that there is no template.
pub(super) fn no_template(tokenizer: Option<&Path>) -> Error {
    let remedy = "name a Jinja file: by --chat-template where a command has that flag, or by `chat_template` under the data_loader";
    let Some(tokenizer) = tokenizer else {
        let place = Path::new("the data set");
        return Error::file(
            place,
            format!("has no tokenizer and no chat template, which conversations need; {remedy}"),
        );
    };
    let config = tokenizer.with_file_name("tokenizer_config.json");
    let (place, what) = match config.is_file() {
        true => (config.as_path(), "has no `chat_template`"),
        false => (tokenizer.parent().unwrap_or(Path::new("")), "has no chat template"),
    };
    Error::file(place, format!("{what}, which conversations need; {remedy}"))
}

/// The text that a template has written.
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

fn one_line(error: &TemplateError) -> String {
    let text = error.detail().map_or_else(|| error.kind().to_string(), str::to_string);
    text.replace('\n', " ")
}

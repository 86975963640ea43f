//! Joins a shader file and what it imports into one WGSL text: the part of WESL that shaders are written in here.
//!
//! `@if(...)` keeps the directive, import, declaration, statement, member or parameter after it where its condition
//! holds. `import package::folder::file::{item, item};` makes items of another file known by their names. What else
//! WESL has (`@else`, `as`, `super`, paths in expressions) is refused. naga parses and validates the result, so nothing
//! of WGSL is known here but where a construct ends.
//!
//! The crate wesl does this too, but parses all of WGSL with 38 crates, a quarter of the time that building all
//! dependencies took.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

/// The text of the file `root` and of the items of other files that it needs, these in the order of their files'
/// paths. `source_of` gives a file, `holds` whether a condition holds: `None` if there is none of that name.
///
/// # Errors
/// The file, what is wrong with it, and the line.
pub(super) fn link<'a>(
    root: &str,
    source_of: impl Fn(&str) -> Option<Source<'a>>,
    holds: impl Fn(&str) -> Option<bool>,
) -> Result<String, String> {
    let missing = |path: &str| format!("there is no file {path}");
    let mut files = BTreeMap::new();
    let mut open = vec![root.to_string()];
    while let Some(path) = open.pop() {
        if files.contains_key(&path) {
            continue;
        }
        let file = File::read(&path, source_of(&path).ok_or_else(|| missing(&path))?, &holds)?;
        for import in file.imports.values() {
            source_of(&import.file).ok_or_else(|| file.fault(missing(&import.file), import.at))?;
            open.push(import.file.clone());
        }
        files.insert(path, file);
    }
    let needed = needed(root, &files)?;
    let directives: BTreeSet<&String> = needed.keys().flat_map(|path| &files[*path].directives).collect();
    let mut joined: String = directives.into_iter().map(|directive| format!("{directive}\n")).collect();
    let others = needed.keys().copied().filter(|path| *path != root);
    for path in std::iter::once(root).chain(others) {
        for (item, names) in needed.get(path).into_iter().flatten() {
            let text = files[path].item_text(&files[path].items[*item], names, root);
            let space = if text.contains('\n') { "\n" } else { "" };
            joined += &format!("{space}{text}\n");
        }
    }
    Ok(joined)
}

/// The items of files that are in the joined text, and the names of items in each.
type Needed<'f> = BTreeMap<&'f str, BTreeMap<usize, Vec<Named<'f>>>>;

/// A token that names an item: its number among those of the item in which it stands, and the file of the named one.
struct Named<'f> {
    token: usize,
    file: &'f str,
}

/// The items that are in the joined text, by file: all of the file `root`, and what they name in turn.
fn needed<'f>(root: &str, files: &'f BTreeMap<String, File>) -> Result<Needed<'f>, String> {
    let mut needed = Needed::new();
    let (root, file) = files.get_key_value(root).expect("the file itself was read");
    let mut open: Vec<(&str, usize)> = (0..file.items.len()).map(|item| (root.as_str(), item)).collect();
    while let Some((path, item)) = open.pop() {
        let (path, file) = files.get_key_value(path).expect("imported files were read");
        if !needed.contains_key(path.as_str()) {
            // Assertions, which nobody names.
            let unnamed = file.items.iter().enumerate().filter(|(_, item)| item.name.is_none());
            open.extend(unnamed.map(|(item, _)| (path.as_str(), item)));
        }
        let of_file = needed.entry(path).or_default();
        if of_file.contains_key(&item) {
            continue;
        }
        let mut names = Vec::new();
        for token in file.items[item].words() {
            let name = file.items[item].tokens[token].text;
            if let Some(own) = file.names.get(name) {
                open.push((path, *own));
                names.push(Named { token, file: path });
            } else if let Some(import) = file.imports.get(name) {
                let (path, other) = files.get_key_value(&import.file).expect("imported files were read");
                let missing = || format!("{path} has no `{name}` under the kernel's conditions");
                let item = other.names.get(name).ok_or_else(|| file.fault(missing(), import.at))?;
                open.push((path, *item));
                names.push(Named { token, file: path });
            }
        }
        of_file.insert(item, names);
    }
    Ok(needed)
}

/// Stands between the path of an imported item's file and its name in the joined text.
const SEPARATOR: &str = "__";

/// The name of an item of a joined text in the file that declares it.
pub(super) fn declared_name(name: &str) -> &str {
    name.rsplit_once(SEPARATOR).map_or(name, |(_, item)| item)
}

/// A file as it is written.
#[derive(Clone)]
pub(super) struct Source<'a> {
    text: &'a str,
    tokens: Arc<[Token<'a>]>,
}

impl<'a> Source<'a> {
    /// The file with this text.
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, tokens: tokens_of(text).into() }
    }
}

/// A word, or one character of what is neither word, space nor comment.
#[derive(Clone, Copy)]
struct Token<'a> {
    text: &'a str,
    /// The first byte in the file.
    at: usize,
    /// The first byte of the line.
    line: usize,
}

/// A global declaration.
struct Item<'a> {
    /// `None` for an assertion.
    name: Option<&'a str>,
    tokens: Vec<Token<'a>>,
}

struct Import {
    /// The path of the file that declares the item.
    file: String,
    /// The byte at which the import stands.
    at: usize,
}

/// What a file holds under a kernel's conditions.
struct File<'a> {
    path: String,
    text: &'a str,
    directives: Vec<String>,
    /// By the name of the imported item.
    imports: HashMap<String, Import>,
    items: Vec<Item<'a>>,
    /// Where each item is in the list.
    names: HashMap<&'a str, usize>,
}

impl<'a> File<'a> {
    fn read(path: &str, source: Source<'a>, holds: impl Fn(&str) -> Option<bool>) -> Result<Self, String> {
        let (directives, imports, items, names) = Default::default();
        let mut file = Self { path: path.to_string(), text: source.text, directives, imports, items, names };
        let tokens = file.kept(&source.tokens, holds)?;
        let mut start = 0;
        while start < tokens.len() {
            let end = file.end_of_construct(&tokens, start)?;
            if end == start {
                return Err(file.fault("a bracket is closed that was not opened", tokens[start].at));
            }
            file.add(&tokens[start..end])?;
            start = end;
        }
        if let Some((name, import)) =
            file.imports.iter().find(|(name, _)| file.names.contains_key(name.as_str()))
        {
            return Err(file.fault(format!("`{name}` is imported and declared"), import.at));
        }
        Ok(file)
    }

    fn fault(&self, what: impl std::fmt::Display, at: usize) -> String {
        located(format!("{}: {what}", self.path), self.text, Some(at..at))
    }

    /// The tokens without conditions, and without what those keep out that do not hold.
    fn kept(
        &self,
        tokens: &[Token<'a>],
        holds: impl Fn(&str) -> Option<bool>,
    ) -> Result<Vec<Token<'a>>, String> {
        let mut kept = Vec::new();
        let mut at = 0;
        while at < tokens.len() {
            if tokens[at].text != "@" {
                kept.push(tokens[at]);
                at += 1;
            } else if is_at(tokens, at, &["@", "if", "("]) {
                let mut condition = &tokens[at + 2..];
                let is_held = one(&mut condition, &holds).map_err(|what| self.fault(what, tokens[at].at))?;
                let end = tokens.len() - condition.len();
                at = if is_held { end } else { self.end_of_construct(tokens, end)? };
            } else if is_at(tokens, at, &["@", "else"]) || is_at(tokens, at, &["@", "elif"]) {
                return Err(self.fault("there are no @else and @elif here; write another @if", tokens[at].at));
            } else {
                kept.push(tokens[at]);
                at += 1;
            }
        }
        Ok(kept)
    }

    /// One past the last token of the directive, declaration, statement, member or parameter that starts at `start`.
    fn end_of_construct(&self, tokens: &[Token], start: usize) -> Result<usize, String> {
        let first = after_attributes(tokens, start);
        // Members and parameters end at a comma, but not at one of their type.
        let is_listed = is_at(tokens, first + 1, &[":"]) && !is_at(tokens, first, &["default"]);
        let (mut brackets, mut angles) = (0, 0);
        for (at, token) in tokens.iter().enumerate().skip(start) {
            match token.text.as_bytes()[0] {
                b'(' | b'[' | b'{' => brackets += 1,
                b')' | b']' | b'}' if brackets == 0 => return Ok(at),
                b')' | b']' => brackets -= 1,
                b'}' => {
                    brackets -= 1;
                    let goes_on = is_at(tokens, at + 1, &["else"]) || is_at(tokens, at + 1, &[";"]);
                    if brackets == 0 && !goes_on {
                        return Ok(at + 1);
                    }
                }
                b';' if brackets == 0 => return Ok(at + 1),
                b'<' if is_listed => angles += 1,
                b'>' if is_listed => angles -= 1,
                b',' if is_listed && brackets == 0 && angles == 0 => return Ok(at + 1),
                _ => {}
            }
        }
        let start = tokens.get(start).map_or(self.text.len(), |token| token.at);
        Err(self.fault("this does not end", start))
    }

    /// Adds a directive, an import or a declaration.
    fn add(&mut self, tokens: &[Token<'a>]) -> Result<(), String> {
        let first = after_attributes(tokens, 0);
        let text = || tokens.iter().map(|token| token.text).collect::<Vec<_>>().join(" ");
        let name = match tokens[first].text {
            ";" => return Ok(()),
            "import" => return self.add_imports(&text(), tokens[first].at),
            "enable" | "requires" | "diagnostic" => {
                self.directives.push(text().replace(" ;", ";"));
                return Ok(());
            }
            "const_assert" => None,
            "fn" | "struct" | "alias" | "const" | "override" => tokens.get(first + 1),
            "var" if is_at(tokens, first + 1, &["<"]) => {
                tokens.iter().skip_while(|token| token.text != ">").nth(1)
            }
            "var" => tokens.get(first + 1),
            other => return Err(self.fault(format!("`{other}` starts no declaration"), tokens[first].at)),
        };
        if let Some(path) = tokens.windows(2).find(|pair| pair[0].text == ":" && pair[1].text == ":") {
            return Err(self.fault("an item of another file is named by an import only", path[0].at));
        }
        let name = name.map(|name| name.text);
        if let Some(name) = name {
            if name.contains(SEPARATOR) {
                let what = format!("`{name}`: two underscores in a row are for names of imported items");
                return Err(self.fault(what, tokens[first].at));
            }
            if self.names.insert(name, self.items.len()).is_some() {
                return Err(self.fault(format!("`{name}` is declared twice"), tokens[first].at));
            }
        }
        self.items.push(Item { name, tokens: tokens.to_vec() });
        Ok(())
    }

    /// Adds an import, whose tokens stand with spaces between them.
    fn add_imports(&mut self, import: &str, at: usize) -> Result<(), String> {
        let path = import.replace(" : : ", "::");
        let parts = path.strip_prefix("import package::").and_then(|path| path.strip_suffix(" ;"));
        let (file, items) = parts.and_then(|path| path.rsplit_once("::")).ok_or_else(|| {
            self.fault("an import is `import package::file::item;` or `::{item, item};`", at)
        })?;
        let items = items.strip_prefix("{ ").and_then(|items| items.strip_suffix(" }")).unwrap_or(items);
        let file = file.replace("::", "/");
        for item in items.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let is_word = |word: &str| word.chars().all(|c| c.is_alphanumeric() || c == '_');
            if !is_word(item) || !file.split('/').all(is_word) {
                return Err(self.fault("an import names items of one file, each by its own name", at));
            }
            let import = Import { file: file.clone(), at };
            let known = self.imports.insert(item.to_string(), import);
            if known.is_some_and(|known| known.file != file) {
                return Err(self.fault(format!("`{item}` is imported from two files"), at));
            }
        }
        Ok(())
    }

    /// An item as the joined text of `root` has it: without comments, and with the `names` that items have there.
    fn item_text(&self, item: &Item, names: &[Named], root: &str) -> String {
        let mut text = String::new();
        let mut end = item.tokens[0].at;
        let mut names = names.iter().filter(|named| named.file != root).peekable();
        for (index, token) in item.tokens.iter().enumerate() {
            if token.line >= end && token.at > end {
                let line = &self.text[token.line..];
                text.push('\n');
                text.push_str(&line[..line.len() - line.trim_start().len()]);
            } else if token.at > end {
                text.push(' ');
            }
            end = token.at + token.text.len();
            if let Some(named) = names.next_if(|named| named.token == index) {
                text += &named.file.replace('/', "_");
                text += SEPARATOR;
            }
            text.push_str(token.text);
        }
        text
    }
}

impl Item<'_> {
    /// The tokens that may name items.
    fn words(&self) -> impl Iterator<Item = usize> {
        (0..self.tokens.len()).filter(|at| self.is_name(*at))
    }

    /// Whether the token at `at` may name an item: it is no number, member, attribute or built-in value.
    fn is_name(&self, at: usize) -> bool {
        let tokens = &self.tokens;
        let first = tokens[at].text.as_bytes()[0];
        let is_word = first.is_ascii_alphabetic() || first == b'_' || !first.is_ascii();
        let before = |count| at.checked_sub(count).map_or("", |at| tokens[at].text);
        let is_member = before(1) == "." || (tokens[0].text == "struct" && is_at(tokens, at + 1, &[":"]));
        let is_attribute =
            before(1) == "@" || (before(1) == "(" && before(2) == "builtin" && before(3) == "@");
        is_word && !is_member && !is_attribute
    }
}

/// The tokens of a file.
fn tokens_of(text: &str) -> Vec<Token<'_>> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii();
    let bytes = text.as_bytes();
    let (mut tokens, mut at, mut line) = (Vec::new(), 0, 0);
    while at < bytes.len() {
        let start = at;
        match bytes[at] {
            b'\n' => {
                at += 1;
                line = at;
            }
            first if first.is_ascii_whitespace() => at += 1,
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                at = text[at..].find('\n').map_or(bytes.len(), |length| at + length);
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                at += block_comment(&text[at..]);
                line = text[..at].rfind('\n').map_or(line, |end| end + 1);
            }
            first => {
                at += 1;
                while is_word(first) && at < bytes.len() && is_word(bytes[at]) {
                    at += 1;
                }
                tokens.push(Token { text: &text[start..at], at: start, line });
            }
        }
    }
    tokens
}

/// The length of the comment with which `text` starts. There may be comments in it.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while let Some(pair) = text.as_bytes().get(at..at + 2) {
        depth += i32::from(pair == b"/*") - i32::from(pair == b"*/");
        at += if pair == b"/*" || pair == b"*/" { 2 } else { 1 };
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// Whether the tokens from `at` on are these.
fn is_at(tokens: &[Token], at: usize, texts: &[&str]) -> bool {
    let found = tokens.get(at..at + texts.len());
    found.is_some_and(|found| found.iter().map(|token| token.text).eq(texts.iter().copied()))
}

/// Where the attributes that start at `at` end.
fn after_attributes(tokens: &[Token], mut at: usize) -> usize {
    while is_at(tokens, at, &["@"]) {
        at += 2;
        if is_at(tokens, at, &["("]) {
            let mut depth = 0;
            for token in &tokens[at..] {
                at += 1;
                depth += i32::from(token.text == "(") - i32::from(token.text == ")");
                if depth == 0 {
                    break;
                }
            }
        }
    }
    at.min(tokens.len().saturating_sub(1))
}

/// The value of the condition with which `rest` starts; moves past it. `&&` binds stronger than `||`.
fn any(rest: &mut &[Token], holds: &impl Fn(&str) -> Option<bool>) -> Result<bool, String> {
    let mut value = all(rest, holds)?;
    while take(rest, &["|", "|"]) {
        value |= all(rest, holds)?;
    }
    Ok(value)
}

fn all(rest: &mut &[Token], holds: &impl Fn(&str) -> Option<bool>) -> Result<bool, String> {
    let mut value = one(rest, holds)?;
    while take(rest, &["&", "&"]) {
        value &= one(rest, holds)?;
    }
    Ok(value)
}

fn one(rest: &mut &[Token], holds: &impl Fn(&str) -> Option<bool>) -> Result<bool, String> {
    if take(rest, &["!"]) {
        return one(rest, holds).map(|value| !value);
    }
    if take(rest, &["("]) {
        let value = any(rest, holds)?;
        return if take(rest, &[")"]) { Ok(value) } else { Err("a condition does not end".into()) };
    }
    let name = rest.first().map_or("", |token| token.text);
    *rest = rest.get(1..).unwrap_or_default();
    holds(name).ok_or_else(|| format!("there is no condition `{name}`"))
}

/// Whether `rest` starts with these tokens; moves past them if so.
fn take(rest: &mut &[Token], texts: &[&str]) -> bool {
    let is_next = is_at(rest, 0, texts);
    if is_next {
        *rest = &rest[texts.len()..];
    }
    is_next
}

/// `what`, followed by the line of `text` in which `span` starts. A line number would refer to the composed text.
pub(super) fn located(what: String, text: &str, span: Option<Range<usize>>) -> String {
    let what = one_line(&what);
    let line = span.and_then(|span| {
        let before = text.get(..span.start)?;
        text[before.rfind('\n').map_or(0, |at| at + 1)..].lines().next()
    });
    match line.map(str::trim).filter(|line| !line.is_empty()) {
        Some(line) => format!("{what}, at `{line}`"),
        None => what,
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

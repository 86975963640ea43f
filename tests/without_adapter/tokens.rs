//! From text to token ids: tokenizers, `tokenize`, and text that training encodes itself.

use crate::configuration::load;
use gristmill::data::tokenize::{TokenFormat, TokenizeConfig, tokenize, train_tokenizer};
use gristmill::data::tokenizer::{END_OF_TEXT, Tokenizer};
use gristmill::data::{Batch, Codec, Dataset, DocumentFormat, TokenizerConfig};
use std::path::{Path, PathBuf};

const MILL: &str = "tests/data/mill.txt";

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(&path, content).expect("a file");
        path
    }

    /// A tokenizer of 300 tokens, trained on the text of the tests.
    fn tokenizer(&self) -> (PathBuf, Tokenizer) {
        let path = self.path("tokenizer.json");
        let tokenizer =
            train_tokenizer(&[MILL.to_string()], &path, 300, 2, false).unwrap_or_else(|e| panic!("{e}"));
        (path, tokenizer)
    }

    /// The data of `loader` and the other keys of `train_dataset`, or the error's line.
    fn load(&self, loader: &str, others: &str) -> Result<Dataset, String> {
        load(&format!(
            "
model:
  model_config: {{ vocab_size: 300, hidden_size: 16, num_layers: 1, num_heads: 2, seq_length: 8 }}
lr_schedule: {{ learning_rate: 1e-3 }}
runner_config: {{ batch_size: 2 }}
train_dataset:
  data_loader: {{ {loader} }}
{others}"
        ))
    }
}

/// All tokens of an unshuffled data set.
fn tokens(data: &Dataset) -> Vec<u32> {
    let steps = 0..data.train.micro_steps_per_epoch();
    steps.flat_map(|step| data.train.batch(step).expect("a batch").tokens).collect()
}

#[test]
fn training_twice_gives_the_same_file() {
    let place = Place::new();
    let (path, tokenizer) = place.tokenizer();
    let again = place.path("again.json");
    train_tokenizer(&[MILL.to_string()], &again, 300, 2, false).expect("a tokenizer");
    let files = [&path, &again].map(|path| std::fs::read_to_string(path).expect("a file"));
    assert!(files[0] == files[1], "two trainings on one text differ");
    assert_eq!((tokenizer.vocab_size(), tokenizer.token_id(END_OF_TEXT)), (300, Some(0)));
    let read = Tokenizer::load(&path).expect("a tokenizer");
    assert_eq!(read.to_json().expect("JSON"), files[0]);
    // Merges were learnt, and any text survives encoding and decoding.
    let mill = std::fs::read_to_string(MILL).expect("the text");
    assert!(read.encode(&mill).expect("tokens").len() < mill.len() * 4 / 5);
    for text in [mill.as_str(), "", " two  spaces\r\n\ttabs ", "ünïcödé 🌾 \u{0}", "<|endoftext|>"] {
        assert_eq!(read.decode(&read.encode(text).expect("tokens")), text);
    }
    assert_eq!(
        read.encode("a<|endoftext|>").expect("tokens")[1..],
        [0],
        "special tokens are recognised in text"
    );
    // Ids that are no tokens, which a model with a padded vocabulary may draw, are skipped.
    let mut ids = read.encode("mill").expect("tokens");
    ids.push(9999);
    assert_eq!(read.decode(&ids), "mill");
}

#[test]
fn documents_are_neither_truncated_nor_padded() {
    let place = Place::new();
    let (path, tokenizer) = place.tokenizer();
    let text = "The mill grinds, and grinds, and grinds.";
    let whole = tokenizer.encode(text).expect("tokens");
    let json = std::fs::read_to_string(&path).expect("a file");
    for (key, value) in [
        ("truncation", r#"{"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}"#),
        (
            "padding",
            r#"{"strategy": {"Fixed": 99}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}"#,
        ),
    ] {
        let off = format!("\"{key}\": null");
        assert_eq!(json.matches(&off).count(), 1, "{key} is off in a new tokenizer");
        let path = place.write("set.json", json.replace(&off, &format!("\"{key}\": {value}")));
        let tokenizer = Tokenizer::load(&path).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(tokenizer.encode(text).expect("tokens"), whole, "{key}");
        assert_eq!(tokenizer.encode_all(&[text.to_string()]).expect("tokens")[0], whole, "{key}");
    }
}

#[test]
fn what_is_no_tokenizer_is_refused_in_one_line() {
    let place = Place::new();
    let (path, _) = place.tokenizer();
    let whole = std::fs::read_to_string(&path).expect("a file");
    let hint = "name a tokenizer.json in Hugging Face's format";
    for (name, content, expected) in [
        ("half.json", &whole[..whole.len() / 2], "is not valid JSON: "),
        ("text.json", "once upon a time", "is not valid JSON: expected value at line 1 column 1; "),
        ("object.json", "{\"vocab_size\": 3}", "is JSON but not a readable tokenizer ("),
        ("list.json", "[1, 2]", "is JSON but not a readable tokenizer ("),
        (
            "model.json",
            "{\"version\": \"1.0\", \"model\": {\"type\": \"Mill\"}}",
            "is JSON but not a readable tokenizer",
        ),
    ] {
        let path = place.write(name, content);
        let error = Tokenizer::load(&path).expect_err(name).to_string();
        assert!(error.starts_with(&format!("{}: {expected}", path.display())), "{error}");
        assert!(error.contains(hint) && !error.contains('\n'), "{error}");
    }
    let error = Tokenizer::load(&place.path("nowhere.json")).expect_err("no file").to_string();
    assert!(error.contains("nowhere.json: cannot be read: "), "{error}");
    let error = train_tokenizer(&[MILL.to_string()], &path, 300, 2, false).expect_err("a file that exists");
    assert!(
        error.to_string().ends_with("exists; choose another name, or replace it with --force"),
        "{error}"
    );
    let broken = place.write("broken.txt", b"good\nb\xffd\n");
    let inputs = [MILL.to_string(), broken.display().to_string()];
    let error = train_tokenizer(&inputs, &path, 300, 2, true).expect_err("no UTF-8").to_string();
    assert!(error.ends_with("broken.txt: is not UTF-8 text at byte 6; convert the file to UTF-8"), "{error}");
    assert_eq!(
        std::fs::read_to_string(&path).expect("the old file"),
        whole,
        "a failed training replaces nothing"
    );
}

fn config(place: &Place, input: &Path, documents: DocumentFormat, format: TokenFormat) -> TokenizeConfig {
    let file = place.path("tokenizer.json");
    TokenizeConfig {
        inputs: vec![input.display().to_string()],
        documents,
        tokenizer: file.exists().then(|| TokenizerConfig { file, eos_token: END_OF_TEXT.to_string() }),
        output: place.path("out/tokens.bin"),
        format,
        force: false,
    }
}

#[test]
fn tokenizing_and_loading_agree_with_encoding_while_training() {
    let place = Place::new();
    let (_, tokenizer) = place.tokenizer();
    let lines = "{\"text\": \"The mill grinds.\"}\n\n{\"text\": \"\"}\n{\"id\": 7, \"text\": \"The miller rests, and the stones rest with him.\"}\n".repeat(4);
    let input = place.write("docs.jsonl", lines);
    let jsonl = DocumentFormat::Jsonl("text".to_string());
    let mut expected = Vec::new();
    for _ in 0..4 {
        for text in ["The mill grinds.", "The miller rests, and the stones rest with him."] {
            expected.extend(tokenizer.encode(text).expect("tokens"));
            expected.push(0);
        }
    }
    let tokenizer_key = format!("  tokenizer: {}", place.path("tokenizer.json").display());
    let bin = place.path("out/tokens.bin").display().to_string();
    for (format, loader) in [
        (TokenFormat::Plain, format!("type: TokenDataLoader, shuffle: False, dataset_files: {bin}")),
        (TokenFormat::LlmC, format!("type: TokenDataLoader, shuffle: False, dataset_files: {bin}")),
        (
            TokenFormat::Megatron,
            format!("type: BlendedMegatronDatasetDataLoader, shuffle: False, config: {{ data_path: {bin} }}"),
        ),
    ] {
        let mut config = config(&place, &input, jsonl.clone(), format);
        config.force = true;
        let mut progress = Vec::new();
        let summary =
            tokenize(&config, |done, total| progress.push((done, total))).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((summary.documents, summary.empty, summary.files), (8, 8, 1));
        assert_eq!(summary.tokens as usize, expected.len());
        let size = input.metadata().expect("a file").len();
        assert!(progress.is_sorted() && progress.last() == Some(&(size, size)), "{progress:?}");
        let data = place.load(&loader, &tokenizer_key).unwrap_or_else(|e| panic!("{e}"));
        let dealt = tokens(&data);
        assert!(dealt.len() > 40 && expected.starts_with(&dealt), "{format:?}");
        assert_eq!(data.codec.decode(&expected[..4]), tokenizer.decode(&expected[..4]));
    }
    let loader = format!("type: JsonlDataLoader, shuffle: False, dataset_files: {}", input.display());
    let data = place.load(&loader, &tokenizer_key).unwrap_or_else(|e| panic!("{e}"));
    assert!(expected.starts_with(&tokens(&data)));
    let sentence = format!(
        "training data: {} tokens of {} bytes of text from 1 file in 8 documents (8 empty documents skipped)",
        expected.len(),
        4 * (16 + 47)
    );
    assert_eq!(data.summary, [sentence]);
    // Without a tokenizer the same lines are read as bytes.
    let data = place.load(&loader, "").unwrap_or_else(|e| panic!("{e}"));
    assert!(matches!(data.codec, Codec::Bytes { eod: 0 }));
    assert!(data.codec.decode(&tokens(&data)).starts_with("The mill grinds.\0The miller rests, "));
}

#[test]
fn outputs_are_whole_or_absent() {
    let place = Place::new();
    let good = place.write("texts/good.txt", "grain");
    place.write("texts/image", [0, 1, 2]);
    let folder = good.parent().expect("a folder").to_path_buf();
    let config = config(&place, &folder, DocumentFormat::File, TokenFormat::Plain);
    let summary = tokenize(&config, |_, _| ()).expect("files");
    assert_eq!(
        summary.to_string(),
        format!(
            "6 tokens in 1 document from 1 file (5 bytes) written to {}; 1 binary file skipped",
            config.output.display()
        )
    );
    assert_eq!(std::fs::read(&config.output).expect("a file"), b"g\0r\0a\0i\0n\0\0\0");
    let error = tokenize(&config, |_, _| ()).expect_err("it exists").to_string();
    assert!(
        error.ends_with("tokens.bin: exists; choose another name, or replace it with --force"),
        "{error}"
    );

    // A failure in the second file leaves the old output and no temporary file.
    place.write("texts/zz.txt", b"stone\nb\xffd");
    let forced = TokenizeConfig { force: true, ..config.clone() };
    let error = tokenize(&forced, |_, _| ()).expect_err("no UTF-8").to_string();
    assert!(error.ends_with("zz.txt: is not UTF-8 text at byte 7; convert the file to UTF-8"), "{error}");
    let megatron =
        TokenizeConfig { format: TokenFormat::Megatron, output: place.path("out/pair"), ..config.clone() };
    assert!(tokenize(&megatron, |_, _| ()).is_err());
    assert_eq!(std::fs::read(&config.output).expect("a file"), b"g\0r\0a\0i\0n\0\0\0");
    assert_eq!(std::fs::read_dir(place.path("out")).expect("a folder").count(), 1);

    let error = |config: TokenizeConfig| tokenize(&config, |_, _| ()).expect_err("nothing to do").to_string();
    let nowhere = TokenizeConfig { inputs: vec!["no/such".to_string()], ..forced.clone() };
    assert_eq!(error(nowhere), "no/such: no such file or folder; name files, folders or patterns that exist");
    let own = place.write("own.txt", "grain");
    let onto_itself =
        TokenizeConfig { inputs: vec![own.display().to_string()], output: own.clone(), ..forced.clone() };
    assert!(
        error(onto_itself)
            .ends_with("own.txt: is an input and would be overwritten; choose another --output")
    );
    let empty = place.write("empty.txt", "").display().to_string();
    let nothing = TokenizeConfig { inputs: vec![empty.clone()], ..forced.clone() };
    assert_eq!(error(nothing), format!("{empty}: no text found (1 empty document); name files with text"));
    let blank = place.write("blank.txt", " \n\n").display().to_string();
    let learn = |inputs: &[&str]| {
        let inputs: Vec<String> = inputs.iter().map(|input| input.to_string()).collect();
        let output = place.path("out/none.json");
        let error = train_tokenizer(&inputs, &output, 300, 2, false).expect_err("no text").to_string();
        assert!(!output.exists(), "a tokenizer was written although there was no text");
        error
    };
    let remedy = "no text to learn from; name files with text";
    assert_eq!(learn(&[&empty]), format!("{empty}: {remedy}"));
    assert_eq!(learn(&[&empty, &blank]), format!("{empty}, {blank}: {remedy}"));
    let json = place.write("bad.jsonl", "{\"text\": \"a\"}\n{\"text\": ").display().to_string();
    let broken = TokenizeConfig {
        inputs: vec![json.clone()],
        documents: DocumentFormat::Jsonl("text".into()),
        ..forced
    };
    assert!(
        error(broken).starts_with(&format!("{json}: line 2: is not valid JSON (EOF while parsing a value"))
    );
}

#[test]
fn a_tokenizer_that_does_not_fit_is_refused() {
    let place = Place::new();
    let (path, _) = place.tokenizer();
    let loader = format!("type: TextDataLoader, dataset_files: {MILL}");
    let tokenizer = |text: &str| format!("  tokenizer: {text}");
    let of_path = tokenizer(&path.display().to_string());
    assert!(place.load(&loader, &of_path).is_ok());
    let larger = place.path("larger.json");
    train_tokenizer(&[MILL.to_string()], &larger, 301, 2, false).expect("a tokenizer");
    let error = place.load(&loader, &tokenizer(&larger.display().to_string())).expect_err("too large");
    let expected =
        "has tokens up to 300, outside vocab_size 300: raise model.model_config.vocab_size to at least 301";
    assert_eq!(error, format!("{}: {expected}", larger.display()));

    let section = |eos: &str| {
        tokenizer(&format!(
            "{{ type: LlamaTokenizer, tokenizer_file: '{}', eos_token: '{eos}' }}",
            path.display()
        ))
    };
    assert!(place.load(&loader, &section(END_OF_TEXT)).is_ok());
    let error = place.load(&loader, &section("</s>")).expect_err("no such token");
    let expected = "has no token `</s>`; set `eos_token` to the token that ends a document";
    assert_eq!(error, format!("{}: {expected}", path.display()));

    let broken = place.write("broken.txt", b"stone\nb\xffd");
    let error = place.load(&format!("type: TextDataLoader, dataset_files: {}", broken.display()), &of_path);
    let expected = "is not UTF-8 text at byte 7; convert the file to UTF-8";
    assert_eq!(error.expect_err("no UTF-8"), format!("{}: {expected}", broken.display()));
    // The cargo registry can be tokenized too.
    assert!(place.load("type: CargoRegistryDataLoader, max_bytes: 9000", &of_path).is_ok());
}

#[test]
fn keys_that_contradict_each_other_are_refused() {
    let place = Place::new();
    let (path, _) = place.tokenizer();
    let of_path = format!("  tokenizer: {}", path.display());
    let text = format!("type: TextDataLoader, dataset_files: {MILL}");
    for (loader, others, expected) in [
        (
            format!("{text}, eod_byte: 0"),
            of_path.as_str(),
            "train_dataset.data_loader.eod_byte: bytes are no tokens beside a `tokenizer`",
        ),
        (
            format!("{text}, data_path: [1, a]"),
            "",
            "data_path: stands beside `dataset_dir` or `dataset_files`; keep one of them",
        ),
        (
            "type: TextDataLoader, data_path: [1, a, 2]".into(),
            "",
            "expected weights and paths by turns, found 3 items",
        ),
        (
            "type: TextDataLoader, data_path: [0, a, 2, b]".into(),
            "",
            "expected a weight above 0 before `a`, found `0`",
        ),
        (
            "type: TextDataLoader, data_path: [a, 1, b, 2]".into(),
            "",
            "expected a weight above 0 before `1`, found `a`",
        ),
        (
            "type: TextDataLoader, data_path: [.inf, a, 2, b]".into(),
            "",
            "expected a weight above 0 before `a`, found `inf`",
        ),
        (
            format!("{text}, documents: page"),
            "",
            "documents: expected file, line or blank_line, found `page`",
        ),
        (text.clone(), "  tokenizer: { vocab_file: x.model }", "tokenizer.vocab_file: not built yet"),
        (text.clone(), "  tokenizer: { type: GPT2Tokenizer }", "`tokenizer_file` is missing"),
        (text.clone(), "  tokenizer: ''", "train_dataset.tokenizer: is empty"),
        (text.clone(), "  eod_token_id: 99999999999", "expected a token id, found `99999999999`"),
        ("type: BlendedMegatronDatasetDataLoader".into(), "", "needs `config.data_path`"),
        (
            "type: BlendedMegatronDatasetDataLoader, config: { data_path: x, split: '0, 1' }".into(),
            "",
            "split: expected the shares",
        ),
        (
            "type: BlendedMegatronDatasetDataLoader, config: { data_path: x, seq_length: 9 }".into(),
            "",
            "9 differs from model.model_config.seq_length 8",
        ),
        (
            "type: BlendedMegatronDatasetDataLoader, datasets_type: MockGPT, config: { data_path: x }".into(),
            "",
            "datasets_type: not built yet",
        ),
        (
            "type: BlendedMegatronDatasetDataLoader, config: { data_path: x }".into(),
            "  eval_fraction: 0.1",
            "is `data_loader.config.split` for this loader",
        ),
        (
            "type: BlendedMegatronDatasetDataLoader, config: { data_path: no/such }".into(),
            "",
            "no/such.idx: no such file",
        ),
    ] {
        let error = place.load(&loader, others).map(|data| data.summary).expect_err(&loader);
        assert!(error.contains(expected) && !error.contains('\n'), "{loader} {others}:\n{error}");
    }
}

#[test]
fn the_ends_of_documents_reach_the_batches() {
    let place = Place::new();
    let lines = place.write("lines.txt", "abc\ndefgh\nij\n".repeat(20));
    let loader =
        format!("type: TextDataLoader, documents: line, shuffle: False, dataset_files: {}", lines.display());
    let batch = |others: &str| -> Batch {
        place.load(&loader, others).unwrap_or_else(|e| panic!("{e}")).train.batch(0).expect("a batch")
    };
    let plain = batch("");
    assert_eq!(plain.tokens[..8], *b"abc\0defg".map(u32::from).as_slice());
    assert_eq!((plain.positions[4], plain.starts[4], plain.ends[4]), (4, 0, 8));
    let reset = batch("  eod_reset: True");
    assert_eq!(reset.positions, [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 0, 1, 2, 0, 1, 2]);
    assert_eq!(reset.starts, [0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 2, 2, 2, 5, 5, 5]);
    assert_eq!(reset.ends, [4, 4, 4, 4, 8, 8, 8, 8, 2, 2, 5, 5, 5, 8, 8, 8]);
    assert_eq!((&reset.tokens, &reset.targets), (&plain.tokens, &plain.targets));
    let masked = batch("  eod_mask_loss: True");
    assert_eq!((masked.targets[3], masked.targets[2], masked.positions[4]), (u32::MAX, 0, 4));
    // Any other token can end documents too.
    let other = batch(&format!("  eod_token_id: {}\n  reset_position_ids: True", b'd'));
    assert_eq!(other.positions[..8], [0, 1, 2, 3, 4, 0, 1, 2]);
    let tokens =
        format!("type: TokenDataLoader, dataset_files: {}", place.write("x.bin", [0; 400]).display());
    let error = place.load(&tokens, "  eod_mask_loss: True").expect_err("no token that ends a document");
    assert!(error.contains("write `eod_token_id` under train_dataset"), "{error}");
}

#[test]
fn the_command_line_says_what_to_do() {
    use clap::Parser;
    use gristmill::cli::{TokenizeArguments, TrainTokenizerArguments};

    #[derive(Parser)]
    enum Program {
        Tokenize(TokenizeArguments),
        TrainTokenizer(TrainTokenizerArguments),
    }
    <Program as clap::CommandFactory>::command().debug_assert();
    let place = Place::new();
    let json = place.path("small.json").display().to_string();
    let parse = |line: &str| Program::try_parse_from(line.split(' ')).unwrap_or_else(|e| panic!("{e}"));
    let train = parse(&format!("gristmill train-tokenizer {MILL} -o {json} --vocab-size 280"));
    let Program::TrainTokenizer(arguments) = train else { panic!("another command") };
    assert_eq!(arguments.run().unwrap_or_else(|e| panic!("{e}")).vocab_size(), 280);

    let out = place.path("mill");
    let line = format!("gristmill tokenize {MILL} -o {} --tokenizer {json} --format", out.display());
    let Program::Tokenize(arguments) = parse(&format!("{line} megatron --documents line")) else {
        panic!("another")
    };
    let summary = arguments.run().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(summary.outputs, [".bin", ".idx"].map(|ending| place.path(&format!("mill{ending}"))));
    assert!(summary.documents > 5 && summary.tokens > summary.documents);
    let jsonl = format!("{line} llm.c --documents jsonl --text-key body --force");
    let Program::Tokenize(arguments) = parse(&jsonl) else { panic!("another") };
    let config = arguments.config();
    assert_eq!(
        (config.documents, config.format),
        (DocumentFormat::Jsonl("body".to_string()), TokenFormat::LlmC)
    );
    assert!(config.force && Program::try_parse_from(["gristmill", "tokenize"]).is_err());
}

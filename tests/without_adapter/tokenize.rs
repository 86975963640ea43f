//! `tokenize` and `train-tokenizer`: the token files hold the tokens that training would encode itself.

use crate::place::{MILL, Place, tokens};
use gristmill::data::tokenize::{TokenFormat, TokenizeConfig, tokenize, train_tokenizer};
use gristmill::data::tokenizer::END_OF_TEXT;
use gristmill::data::{Codec, DocumentFormat};
use std::path::Path;

fn config(place: &Place, input: &Path, documents: DocumentFormat, format: TokenFormat) -> TokenizeConfig {
    let file = place.path("tokenizer.json");
    TokenizeConfig {
        inputs: vec![input.display().to_string()],
        documents,
        codec: match file.exists() {
            true => Codec::of_tokenizer(&file, END_OF_TEXT, usize::MAX).expect("a codec"),
            false => Codec::Bytes { eod: 0 },
        },
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
        let read = tokens(&data);
        assert!(read.len() > 40 && expected.starts_with(&read), "{format:?}");
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
    let config = arguments.config().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(
        (config.documents, config.format),
        (DocumentFormat::Jsonl("body".to_string()), TokenFormat::LlmC)
    );
    assert!(config.force && Program::try_parse_from(["gristmill", "tokenize"]).is_err());
}

//! Tokenizers: trained, read, and refused.

use crate::place::{MILL, Place};
use gristmill::data::tokenize::train_tokenizer;
use gristmill::data::tokenizer::{END_OF_TEXT, Tokenizer};

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
    assert!(error.contains("nowhere.json: cannot read: "), "{error}");
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

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

/// A tokenizer of letters, in which text is written small, and what transformers 5.23 makes of the files beside it for
/// each of [`TEXTS`]: blanks that belong to a token, tokens that are whole words, tokens of normalised text, and which
/// file counts.
const LETTERS: &str = r#"{"version": "1.0", "added_tokens": OWN, "normalizer": {"type": "Lowercase"}, "pre_tokenizer": null,
    "post_processor": null, "decoder": null, "model": {"type": "BPE", "merges": [], "vocab":
    {" ": 0, "a": 1, "b": 2, "i": 3, "l": 4, "m": 5, "x": 6, "<": 7, ">": 8, "s": 9}}}"#;
const TEXTS: [&str; 5] = ["a <x> b", "a<x>b", "<X> a", "mill mills", "MILL"];

#[test]
fn flags_of_added_tokens_count_as_in_transformers() {
    let own = |flags: &str| {
        format!(
            r#"[{{"id": 10, "content": "<x>", "single_word": false, "rstrip": false, "normalized": false, "special": true, {flags}}}]"#
        )
    };
    let plain: [&[u32]; 3] = [&[1, 0, 10, 0, 2], &[1, 10, 2], &[7, 6, 8, 0, 1]];
    let before: [&[u32]; 3] = [&[1, 10, 0, 2], plain[1], plain[2]];
    let after: [&[u32]; 3] = [&[1, 0, 10, 2], plain[1], plain[2]];
    let normalized: [&[u32]; 3] = [plain[0], plain[1], &[10, 0, 1]];
    let none: [&[u32]; 3] = [&[1, 0, 7, 6, 8, 0, 2], &[1, 7, 6, 8, 2], &[7, 6, 8, 0, 1]];
    let mills: [&[u32]; 2] = [&[5, 3, 4, 4, 0, 5, 3, 4, 4, 9], &[5, 3, 4, 4]];
    let (word, any): ([&[u32]; 2], [&[u32]; 2]) =
        ([&[10, 0, 5, 3, 4, 4, 9], &[10]], [&[10, 0, 10, 9], &[10]]);
    let decoder = |token: &str| format!(r#"{{"added_tokens_decoder": {{"10": {{{token}}}}}}}"#);
    let lstrip = r#""lstrip": true"#;
    let bos = r#"{"bos_token": "<x>"}"#.to_string();
    for (own, config, map, x, mill) in [
        ("[]", decoder(r#""content": "<x>", "special": true"#), "", plain, mills),
        ("[]", decoder(r#""content": "<x>", "special": true, "lstrip": true"#), "", before, mills),
        ("[]", decoder(r#""content": "<x>", "special": true, "rstrip": true"#), "", after, mills),
        ("[]", decoder(r#""content": "<x>""#), "", normalized, mills),
        ("[]", decoder(r#""content": "<x>", "normalized": false"#), "", plain, mills),
        ("[]", decoder(r#""content": "<x>", "special": true, "normalized": true"#), "", normalized, mills),
        ("[]", decoder(r#""content": "mill", "single_word": true"#), "", none, word),
        ("[]", decoder(r#""content": "mill""#), "", none, any),
        // Of a token that `tokenizer.json` has too, the decoder counts, and names do not.
        (
            &own(r#""lstrip": false"#),
            decoder(r#""content": "<x>", "special": true, "lstrip": true"#),
            "",
            before,
            mills,
        ),
        (&own(lstrip), decoder(r#""content": "<x>", "special": true"#), "", plain, mills),
        (&own(lstrip), bos.clone(), "", before, mills),
        (
            &own(lstrip),
            r#"{"bos_token": {"__type": "AddedToken", "content": "<x>", "rstrip": true}}"#.into(),
            "",
            before,
            mills,
        ),
        (
            "[]",
            r#"{"bos_token": {"__type": "AddedToken", "content": "<x>", "lstrip": true}}"#.into(),
            "",
            before,
            mills,
        ),
        (
            "[]",
            r#"{"bos_token": {"__type": "AddedToken", "content": "<x>", "normalized": true}}"#.into(),
            "",
            normalized,
            mills,
        ),
        (
            "[]",
            r#"{"extra_special_tokens": [{"__type": "AddedToken", "content": "<x>", "rstrip": true}]}"#
                .into(),
            "",
            [after[0], after[1], &[10, 1]],
            mills,
        ),
        (
            "[]",
            "{}".into(),
            r#"{"bos_token": {"content": "<x>", "rstrip": true, "special": false}}"#,
            after,
            mills,
        ),
        (
            "[]",
            "{}".into(),
            r#"{"extra_special_tokens": [{"content": "<x>", "rstrip": true}]}"#,
            after,
            mills,
        ),
        (
            "[]",
            format!(
                r#"{{"bos_token": {{"__type": "AddedToken", "content": "<x>", "lstrip": true}}, {}"#,
                &decoder(r#""content": "<x>""#)[1..]
            ),
            "",
            plain,
            mills,
        ),
    ] {
        let place = Place::new();
        let file = place.write("tokenizer.json", LETTERS.replace("OWN", own).as_bytes());
        place.write("tokenizer_config.json", config.as_bytes());
        if !map.is_empty() {
            place.write("special_tokens_map.json", map.as_bytes());
        }
        let tokenizer = Tokenizer::load(&file).unwrap_or_else(|e| panic!("{e}"));
        let ids = TEXTS.map(|text| tokenizer.encode(text).expect("letters"));
        let want: Vec<Vec<u32>> = x.iter().chain(&mill).map(|ids| ids.to_vec()).collect();
        assert_eq!(ids.to_vec(), want, "{own} {config} {map}");
    }
}

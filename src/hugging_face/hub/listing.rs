//! What the Hub says of the files of a model, and which of them are fetched.

use serde::Deserialize;

/// Ends of the files beside weights: configurations, tokenizers, templates, and code, which checkpoints keep.
const BESIDE: [&str; 6] = [".json", ".jinja", ".txt", ".model", ".py", ".tiktoken"];
const WEIGHTS: &str = ".safetensors";
/// Names of files with all weights of a model or an adapter, the first that is there.
const WHOLE: [&str; 2] = ["model.safetensors", "adapter_model.safetensors"];
/// How the names of files begin that have a part of the weights each, such as `model-00001-of-00002.safetensors` and
/// `model.safetensors-00001-of-00002.safetensors`; and what else they have.
const PART: [&str; 2] = ["model", "-of-"];

/// The files of a model.
pub(super) struct Listing {
    /// The commit that has them.
    pub commit: String,
    pub files: Vec<RemoteFile>,
}

/// A file of a commit.
#[derive(Debug, PartialEq)]
pub(super) struct RemoteFile {
    pub name: String,
    /// In bytes.
    pub size: u64,
    /// Its SHA-256, of 64 digits, or the SHA-1 that git has of it, of 40; the name of the file in caches.
    pub hash: String,
}

#[derive(Deserialize)]
struct Answer {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

/// Whether a file of this name is of a model: weights, or what is beside them.
pub(crate) fn is_of_model(name: &str) -> bool {
    name.ends_with(WEIGHTS) || BESIDE.iter().any(|end| name.ends_with(end))
}

impl Listing {
    /// # Errors
    /// It is no answer of the Hub, or has no hash or size of a file.
    pub fn of(text: &str) -> Result<Self, String> {
        let answer: Answer = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let files = answer.siblings.into_iter().filter(|file| !file.rfilename.contains(['/', '\\']));
        let files = files.map(RemoteFile::of).collect::<Result<_, _>>()?;
        Ok(Self { commit: hexadecimal(answer.sha, &[40])?, files })
    }

    /// The files that a model is opened with.
    ///
    /// # Errors
    /// None of them has weights that can be read.
    pub fn needed(self) -> Result<Vec<RemoteFile>, String> {
        let of_weights = |file: &RemoteFile| file.name.ends_with(WEIGHTS);
        let is_there = |name: &str| self.files.iter().any(|file| file.name == name);
        let is_in_parts = is_there("model.safetensors.index.json");
        let whole = WHOLE.into_iter().find(|name| is_there(name));
        let is_needed = |file: &RemoteFile| match whole {
            _ if !of_weights(file) => is_of_model(&file.name),
            _ if is_in_parts => file.name.starts_with(PART[0]) && file.name.contains(PART[1]),
            Some(whole) => file.name == whole,
            None => false,
        };
        let names = self.files.iter().map(|file| file.name.clone()).collect::<Vec<_>>();
        let needed: Vec<RemoteFile> = self.files.into_iter().filter(is_needed).collect();
        if needed.iter().any(of_weights) {
            return Ok(needed);
        }
        let others = [".gguf", ".bin", ".pth", ".pt", ".h5", ".msgpack", ".onnx"];
        let other = names.iter().find(|name| others.iter().any(|end| name.ends_with(end)));
        let other = other.map_or_else(String::new, |name| format!(", but {name}"));
        Err(format!("it has no model.safetensors{other}; name a model whose weights are safetensors"))
    }
}

impl RemoteFile {
    fn of(file: Sibling) -> Result<Self, String> {
        let Sibling { rfilename: name, size, blob_id, lfs } = file;
        let (size, hash) = match lfs {
            Some(lfs) => (Some(lfs.size), Some(hexadecimal(lfs.sha256, &[64])?)),
            None => (size, blob_id.map(|hash| hexadecimal(hash, &[40])).transpose()?),
        };
        let (Some(size), Some(hash)) = (size, hash) else { return Err(format!("no size or hash of {name}")) };
        Ok(Self { name, size, hash })
    }
}

/// `text`, if it has one of these numbers of hexadecimal digits; it becomes a name of a file.
fn hexadecimal(text: String, lengths: &[usize]) -> Result<String, String> {
    let is_right = lengths.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_right { Ok(text) } else { Err(format!("{text:?} is no hash")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needed(names: &[&str]) -> Result<Vec<String>, String> {
        let file = |name: &&str| RemoteFile { name: (*name).into(), size: 1, hash: String::new() };
        let listing = Listing { commit: String::new(), files: names.iter().map(file).collect() };
        Ok(listing.needed()?.into_iter().map(|file| file.name).collect())
    }

    #[test]
    fn one_form_of_the_weights_is_taken() {
        let beside = ["config.json", "chat_template.jinja", "tokenizer.json"];
        let with = |names: &[&'static str]| [&beside, names].concat();
        let is = |names: &[&'static str], taken: &[&'static str]| {
            let taken: Vec<String> = with(taken).into_iter().map(String::from).collect();
            assert_eq!(
                needed(&with(&[names, &["README.md", "logo.png", "pytorch_model.bin"]].concat())),
                Ok(taken)
            );
        };
        is(
            &["model.safetensors", "model.fp16.safetensors", "consolidated.safetensors"],
            &["model.safetensors"],
        );
        let parts = [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
        ];
        is(&parts, &parts);
        is(&[&parts[..], &["consolidated-00001-of-00001.safetensors"]].concat(), &parts);
        let one = ["model.safetensors-00001-of-00001.safetensors", "model.safetensors.index.json"];
        is(&one, &one);
        is(
            &["adapter_model.safetensors", "adapter_config.json"],
            &["adapter_model.safetensors", "adapter_config.json"],
        );
        let why = needed(&["config.json", "model-Q4_K_M.gguf"]).unwrap_err();
        assert!(why.starts_with("it has no model.safetensors, but model-Q4_K_M.gguf"), "{why}");
    }

    #[test]
    fn an_answer_has_a_size_and_a_hash_of_each_file_in_the_folder_itself() {
        let commit = "a".repeat(40);
        let (sha, git) = ("b".repeat(64), "c".repeat(40));
        let weights = format!(
            r#"{{"rfilename": "model.safetensors", "size": 5, "blobId": "{git}", "lfs": {{"sha256": "{sha}", "size": 7}}}}"#
        );
        let answer = |files: &str| Listing::of(&format!(r#"{{"sha": "{commit}", "siblings": [{files}]}}"#));
        let listing = answer(&format!(r#"{weights}, {{"rfilename": "onnx/a.json"}}"#)).expect("a list");
        assert_eq!(listing.files, [RemoteFile { name: "model.safetensors".into(), size: 7, hash: sha }]);
        for wrong in [
            r#"{"rfilename": "config.json"}"#,
            r#"{"rfilename": "a.json", "size": 1, "blobId": "../../passwd"}"#,
            "1",
        ] {
            assert!(answer(wrong).is_err(), "{wrong}");
        }
    }
}

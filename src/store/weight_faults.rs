//! Errors of weights that no configuration makes fit: files of other formats, and tensors that are stored in another
//! way or missing.

use crate::error::{Error, Result};
use crate::hugging_face::refuse_name_of_hub;
use safetensors::Dtype;
use std::path::{Path, PathBuf};

/// Remedy for tensors that another shape of the model would fit.
pub(super) const OTHER_MODEL: &str = "give model.model_config the shape of the checkpoint, or load another";
/// The ends of the names of files of other formats, and what to do with such files. For PyTorch's, [`conversion`] says
/// it.
const FORMATS: [(&str, &str); 5] = [
    (
        "ckpt",
        "is of MindSpore (or PyTorch), whose format is not read: convert it to safetensors under Hugging Face's names, as \
              MindFormers' weight conversion does with `--reversed`, and name that file",
    ),
    ("bin", PICKLE),
    ("pt", PICKLE),
    ("pth", PICKLE),
    (
        "gguf",
        "is of llama.cpp, whose files are written and not read: fetch the model's safetensors files instead, or save them by \
         `from_pretrained(FOLDER, gguf_file=NAME)` of transformers",
    ),
];
const PICKLE: &str = "is a pickle of PyTorch, which is not read, since it may run code";
/// A Python program that writes the tensors of all files among its arguments but the first to the first. Tensors that
/// share memory get their own memory.
const CONVERT: &str = "import sys, torch, safetensors.torch as s; out, *files = sys.argv[1:]; s.save_file({n: t.contiguous().clone() \
                       for f in files for n, t in torch.load(f, map_location='cpu', weights_only=True).items()}, out, {'format': 'pt'})";
/// The ends of names that quantised weights have beside or instead of their tensors.
const QUANTISED: [&str; 7] =
    ["_blocks", "_scales", "weight_scale", "qweight", "qzeros", "weight_packed", "absmax"];
/// The ends of the names of what MXFP4 has instead of a tensor.
const MXFP4: [&str; 2] = ["_blocks", "_scales"];

/// Refuses a file of another format, a folder that has nothing else, and a name of a model on a hub.
///
/// # Errors
/// The file, and what to do with it.
pub(super) fn check_format(path: &Path) -> Result<()> {
    refuse_name_of_hub(path)?;
    let Some(file) = file_at(path) else { return Ok(()) };
    let end = file.extension().and_then(|end| end.to_str()).unwrap_or_default();
    let format = FORMATS.iter().find(|(known, _)| *known == end);
    format.map_or(Ok(()), |(_, why)| {
        let remedy = if *why == PICKLE { format!("; {}", conversion(&file)) } else { String::new() };
        Err(Error::file(&file, format!("{why}{remedy}")))
    })
}

/// The command that converts `file`, with its neighbours if it is one of several, to a file beside it.
fn conversion(file: &Path) -> String {
    let quoted = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', r"'\''"));
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (out, name) = (folder.join(super::weight_files::MODEL), file.to_string_lossy());
    // pytorch_model-00001-of-00002.bin
    let files = match (name.rsplit_once("-of-"), file.file_name().and_then(|name| name.to_str())) {
        (Some(_), Some(name)) => {
            let stem = name.split('-').next().unwrap_or(name);
            let end = file.extension().unwrap_or_default().to_string_lossy();
            format!("{}/{}-*.{end}", quoted(folder), quoted(Path::new(stem)))
        }
        _ => quoted(file),
    };
    format!(
        "convert it by `python3 -c \"{CONVERT}\" {} {files}`, which needs torch, and load that",
        quoted(&out)
    )
}

/// The file at `path`; if `path` is a folder without safetensors files, a file of another format in it.
fn file_at(path: &Path) -> Option<PathBuf> {
    if !path.is_dir() {
        return path.is_file().then(|| path.to_path_buf());
    }
    let files = std::fs::read_dir(path).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<PathBuf> = files.collect();
    files.sort_unstable();
    let ends_in = |file: &PathBuf, end: &str| file.extension().is_some_and(|found| found == end);
    if files.iter().any(|file| ends_in(file, "safetensors")) {
        return None;
    }
    let name = |file: &PathBuf| file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    // Other programs keep their arguments in files of these formats too.
    let holds_weights = |file: &PathBuf| !name(file).contains("training_args");
    files.into_iter().filter(holds_weights).find(|file| FORMATS.iter().any(|(end, _)| ends_in(file, end)))
}

/// What to do about the tensor `name` that a file with tensors of these `names` lacks.
pub(super) fn remedy_of_missing<'a>(name: &str, names: impl Iterator<Item = &'a str> + Clone) -> String {
    let bare = name.strip_prefix("model.").unwrap_or(name);
    let is_inner = |stored: &&str| [name, bare].iter().any(|name| stored.ends_with(&format!(".{name}")));
    let of_mxfp4 = MXFP4.map(|end| format!("{name}{end}"));
    let found: Vec<&String> =
        of_mxfp4.iter().filter(|part| names.clone().any(|stored| stored == *part)).collect();
    match found[..] {
        [] => {}
        [part] => return format!("of its MXFP4 only `{part}` is there: fetch the file again"),
        _ => {
            let [blocks, scales] = of_mxfp4;
            return format!(
                "`{blocks}` and `{scales}` do not fit each other as MXFP4, which are bytes of (experts, outputs, blocks, \
                 16) and of (experts, outputs, blocks): fetch the file again"
            );
        }
    }
    let quantised = names.clone().filter(|stored| QUANTISED.iter().any(|end| stored.ends_with(end)));
    if let Some(quantised) = quantised.min() {
        return format!(
            "its weights are quantised (`{quantised}`), which are not read: fetch or save it in bfloat16"
        );
    }
    match names.clone().filter(|stored| *stored != name).find(is_inner) {
        Some(stored) => format!(
            "`{stored}` is one: a language model inside another model, which is not read out of it: save it by itself, under its \
             own names"
        ),
        None => OTHER_MODEL.to_string(),
    }
}

/// What to do about tensors that a model has no place for.
pub(super) fn remedy_of_unplaced(names: &[&str]) -> String {
    let quantised = names.iter().find(|name| QUANTISED.iter().any(|end| name.ends_with(end)));
    match quantised {
        Some(_) => "its weights are quantised, which are not read: fetch or save it in bfloat16".to_string(),
        None => format!("{OTHER_MODEL}, or write `load_partial: True` to leave them out"),
    }
}

/// What to do about a tensor of this type, where floats are needed.
pub(super) fn remedy_of_type(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::BOOL | Dtype::I64 | Dtype::U64 => OTHER_MODEL,
        _ => "quantised weights are not read: fetch or save the checkpoint in bfloat16",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_format_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |name: &str, at: &str| {
            let file = folder.path().join(name);
            std::fs::write(&file, b"weights").unwrap();
            let found = check_format(&folder.path().join(at)).map_err(|error| error.to_string());
            std::fs::remove_file(&file).unwrap();
            found
        };
        for (name, why) in [
            (
                "pytorch_model.bin",
                "is a pickle of PyTorch, which is not read, since it may run code; convert it by `python3 -c",
            ),
            (
                "llama.ckpt",
                "is of MindSpore (or PyTorch), whose format is not read: convert it to safetensors",
            ),
            ("model.gguf", "is of llama.cpp"),
        ] {
            for at in [name, ""] {
                let found = refused(name, at).unwrap_err();
                assert!(found.contains(name) && found.contains(why), "{found}");
            }
        }
        assert_eq!(refused("model.safetensors", ""), Ok(()));
        assert_eq!(refused("training_args.bin", ""), Ok(()));
        assert_eq!(check_format(&folder.path().join("none.bin")).map_err(|error| error.to_string()), Ok(()));
    }

    #[test]
    fn a_pickle_is_converted_to_a_file_beside_it() {
        let arguments = |file: &str| {
            let command = conversion(Path::new(file));
            let (_, end) = command.rsplit_once("{'format': 'pt'})\" ").unwrap();
            end.split_once('`').unwrap().0.to_string()
        };
        assert_eq!(arguments("a/model.pt"), "'a/model.safetensors' 'a/model.pt'");
        assert_eq!(arguments("it's.bin"), r"'./model.safetensors' 'it'\''s.bin'");
        let several = arguments("b c/pytorch_model-00001-of-00002.bin");
        assert_eq!(several, "'b c/model.safetensors' 'b c'/'pytorch_model'-*.bin");
    }

    #[test]
    fn a_missing_tensor_says_where_it_is() {
        let remedy = |names: &[&str]| remedy_of_missing("model.embed_tokens.weight", names.iter().copied());
        assert_eq!(remedy(&["model.norm.weight"]), OTHER_MODEL);
        for inner in ["language_model.model.embed_tokens.weight", "model.language_model.embed_tokens.weight"]
        {
            assert!(remedy(&[inner]).contains(&format!("`{inner}` is one: a language model inside another")));
        }
        // Of a tensor in MXFP4 itself, and beside others that are whole.
        let of_experts = |ends: &[&str]| {
            let names: Vec<String> = ends.iter().map(|end| format!("experts{end}")).collect();
            remedy_of_missing("experts", names.iter().map(String::as_str))
        };
        assert!(of_experts(&["_scales"]).contains("only `experts_scales` is there"));
        assert!(of_experts(&["_blocks", "_scales"]).contains("do not fit each other as MXFP4"));
        for end in ["gate_up_proj_blocks", "q_proj.weight_scale", "q_proj.qweight"] {
            assert!(remedy(&[&format!("model.layers.0.{end}")]).contains("quantised"));
        }
        assert!(remedy_of_type(Dtype::F8_E5M2).contains("quantised"));
        assert_eq!(remedy_of_type(Dtype::I64), OTHER_MODEL);
    }
}

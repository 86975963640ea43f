//! The architecture's invariants, checked on the source text.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The Rust files below `folder`: path from the repository's root, and text.
fn files(folder: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders: Vec<PathBuf> = vec![root.join(folder)];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder of the repository") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let name =
                    path.strip_prefix(root).expect("below the root").to_string_lossy().replace('\\', "/");
                files.push((name, fs::read_to_string(&path).expect("a readable file")));
            }
        }
    }
    files.sort();
    files
}

/// The paths below `folder`, from the repository's root.
fn paths_below(folder: &str) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = vec![folder.to_string()];
    for entry in fs::read_dir(root.join(folder)).expect("a folder of the repository") {
        let entry = entry.expect("an entry");
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        let is_folder = entry.file_type().expect("a type").is_dir();
        paths.extend(if is_folder { paths_below(&path) } else { vec![path] });
    }
    paths
}

/// The path of a module, without `gpu`, each of whose modules is listed by itself.
fn path_of(file: &str) -> String {
    let inside = file.trim_start_matches("src/").trim_start_matches("gpu/");
    inside.trim_end_matches(".rs").replace('/', "::")
}

/// The entry of the list that a path lies in: the longest that it begins with.
fn entry_of(path: &str) -> Option<&'static (&'static str, &'static [&'static str])> {
    let lies_in =
        |name: &str| path.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
    MAY_IMPORT.iter().filter(|(name, _)| lies_in(name)).max_by_key(|(name, _)| name.len())
}

/// What each module may import. Data flows down the list: but for `perf`, `infer`, `train` and what ranks compare,
/// which are of one run, a module never imports one that imports it.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("gpu", &[]),
    ("element", &[]),
    ("error", &[]),
    ("durable", &["error"]),
    ("random", &[]),
    ("ranks", &["error"]),
    ("kernels", &["element", "error"]),
    ("record", &["element", "kernels", "error", "ranks"]),
    ("ops", &["element", "kernels", "ranks", "record"]),
    ("tape", &["element", "kernels", "ops", "record"]),
    ("model", &["element", "error", "kernels", "ops", "random", "ranks", "record", "tape"]),
    ("ranks::sharding", &["element", "kernels", "model", "ops", "ranks", "record"]),
    ("data", &["durable", "error", "random"]),
    ("device", &["durable", "element", "error", "kernels", "ops", "random", "ranks", "record"]),
    ("hugging_face", &["data", "durable", "error", "model", "ops"]),
    (
        "settings",
        &["data", "element", "error", "hugging_face", "kernels", "model", "ranks", "ranks::sharding"],
    ),
    ("store", &["durable", "element", "error", "hugging_face", "model", "ops", "ranks", "record"]),
    // The page shows settings beside their defaults.
    ("report", &["durable", "error", "settings", "store"]),
    ("ranks::rank_layouts", OF_A_RUN),
    ("ranks::replicas", OF_A_RUN),
    ("ranks::consistency", OF_A_RUN),
    ("perf", OF_A_RUN),
    ("infer", OF_A_RUN),
    ("train", OF_A_RUN),
    // Nothing imports the command lines.
    ("cli", OF_A_RUN),
    ("main", &["cli"]),
];

/// What modules about a whole run may import: everything but the command lines.
const OF_A_RUN: &[&str] = &[
    "data",
    "device",
    "durable",
    "element",
    "error",
    "hugging_face",
    "infer",
    "kernels",
    "model",
    "ops",
    "perf",
    "random",
    "ranks",
    "ranks::consistency",
    "ranks::rank_layouts",
    "ranks::replicas",
    "ranks::sharding",
    "record",
    "report",
    "settings",
    "store",
    "tape",
    "train",
];

#[test]
fn modules_import_only_what_they_may() {
    for (file, text) in files("src").iter().filter(|(file, _)| file != "src/lib.rs") {
        let Some((module, allowed)) = entry_of(&path_of(file)) else {
            panic!("{file} lies in no module of the list of tests/without_adapter/tidy.rs");
        };
        for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
            for used in line.split("crate::").skip(1).map(|used| used.trim_start_matches("gpu::")) {
                let used: String =
                    used.chars().take_while(|c| c.is_alphanumeric() || ['_', ':'].contains(c)).collect();
                let Some((used, _)) = entry_of(used.trim_end_matches(':')) else { continue };
                let fine = used == module || allowed.contains(used);
                assert!(fine, "{file} imports crate::{used}, which `{module}` may not:\n{line}");
            }
        }
    }
}

/// Files that import each other are read together, so circles are small: a file and one that it belongs with, or a
/// subject and its parts.
const LARGEST_CIRCLE: usize = 3;

#[test]
fn files_import_each_other_only_where_they_belong_together() {
    let files = files("src");
    let files = files.iter().filter(|(file, _)| !file.contains("tests"));
    let modules: Vec<(Vec<&str>, &str)> = files
        .map(|(file, text)| {
            let inside = file.trim_start_matches("src/").trim_end_matches(".rs");
            (inside.split('/').collect(), text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text))
        })
        .collect();
    let imports: Vec<BTreeSet<usize>> = modules.iter().map(|module| imported(module, &modules)).collect();
    let reached: Vec<BTreeSet<usize>> = (0..modules.len()).map(|start| reachable(start, &imports)).collect();
    let circles: BTreeSet<Vec<usize>> = (0..modules.len())
        .map(|one| reached[one].iter().copied().filter(|&other| reached[other].contains(&one)).collect())
        .collect();
    for circle in &circles {
        let names: Vec<String> = circle.iter().map(|&index| modules[index].0.join("/")).collect();
        assert!(circle.len() <= LARGEST_CIRCLE, "these files import each other: {}", names.join(", "));
    }
    assert!(circles.iter().any(|circle| circle.len() > 1), "imports are found");
}

/// The files of `modules` that a file imports, whose path and text `module` is.
fn imported((path, text): &(Vec<&str>, &str), modules: &[(Vec<&str>, &str)]) -> BTreeSet<usize> {
    let code: String =
        text.lines().map(|line| line.split("//").next().unwrap_or(line).to_string() + "\n").collect();
    let statements = code.split(';').filter_map(|statement| {
        let line = statement.rsplit("\n\n").next()?.trim();
        let tree = line.strip_prefix("use ").filter(|tree| !tree.contains('"'))?;
        Some(tree.replace(['\n', ' '], ""))
    });
    let of_gpu = ["device", "element", "kernels", "random", "record"];
    let mut found = BTreeSet::new();
    for import in statements.flat_map(|tree| expand(&tree)) {
        let mut steps: Vec<&str> = import.split("::").collect();
        let mut base: Vec<&str> = path.clone();
        match steps[0] {
            "crate" => base.clear(),
            "super" | "self" => {}
            _ => continue,
        }
        while ["crate", "super", "self"].contains(steps.first().unwrap_or(&"")) {
            if steps.remove(0) == "super" {
                base.pop();
            }
        }
        if base.is_empty() && steps.first().is_some_and(|step| of_gpu.contains(step)) {
            base.push("gpu");
        }
        base.extend(steps);
        // What is imported is the item of a file, or one that the file passes on.
        let of_file = (1..=base.len())
            .rev()
            .find_map(|len| modules.iter().position(|(other, _)| *other == base[..len]));
        found.extend(of_file.filter(|&index| modules[index].0 != *path));
    }
    found
}

/// The paths that a tree of imports names: `a::{b,c::{d,e}}` is a::b, a::c::d and a::c::e.
fn expand(tree: &str) -> Vec<String> {
    let Some((prefix, rest)) = tree.split_once('{') else { return vec![tree.to_string()] };
    let inner = rest.strip_suffix('}').expect("braces in pairs");
    let mut depth = 0;
    let parts = inner.split(|letter| {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        letter == ',' && depth == 0
    });
    parts.filter(|part| !part.is_empty()).flat_map(|part| expand(&format!("{prefix}{part}"))).collect()
}

/// The files that `start` imports, and those that these do.
fn reachable(start: usize, imports: &[BTreeSet<usize>]) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut open = vec![start];
    while let Some(module) = open.pop() {
        open.extend(imports[module].iter().copied().filter(|&next| reached.insert(next)));
    }
    reached
}

/// Otherwise a mistake could be in a kernel and in what it is compared with.
#[test]
fn the_reference_depends_on_nothing() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/Cargo.toml");
    let manifest = fs::read_to_string(manifest).expect("a manifest");
    let sections: Vec<&str> = manifest.lines().filter(|line| line.starts_with('[')).collect();
    assert_eq!(sections, ["[package]", "[lib]", "[dev-dependencies]"]);
    assert!(!manifest.contains("path"), "the reference is tested by itself:\n{manifest}");
}

#[test]
fn only_binaries_block() {
    // A browser must not block, so whatever waits for the device is a future.
    let inner = |file: &str| !file.ends_with("tests.rs") && !file.starts_with("src/cli");
    for (file, text) in files("src").iter().filter(|(file, _)| inner(file)) {
        let mut code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        assert!(code.all(|line| !line.contains("block_on")), "{file} blocks on a future; only binaries may");
    }
}

fn only_in(needle: &str, home: &str, why: &str) {
    for (file, text) in files("src").iter().filter(|(file, _)| !file.starts_with(home)) {
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        for line in code {
            assert!(!line.contains(needle), "{file} names {needle}; only {home} may: {why}\n{line}");
        }
    }
}

#[test]
fn each_foreign_library_has_one_home() {
    only_in("wgpu::", "src/gpu/device", "recordings must work without an adapter");
    only_in("serde_yaml", "src/settings/engine/yaml.rs", "one file knows the YAML library");
    only_in("tokenizers::", "src/data/tokenizer/hugging_face.rs", "one file knows the tokenizer library");
    only_in("httparse::", "src/cli/watch/request.rs", "one file knows how requests are parsed");
}

#[test]
fn no_shader_text_in_rust() {
    for (file, text) in files("src") {
        for mark in ["@compute", "@group(", "var<storage"] {
            assert!(!text.contains(mark), "{file} holds shader text ({mark}); shaders live under shaders/");
        }
    }
}

#[test]
fn nothing_unfinished_is_called_done() {
    for folder in ["src", "tests", "examples", "benches"] {
        for (file, text) in files(folder).iter().filter(|(file, _)| file != "tests/without_adapter/tidy.rs") {
            for mark in ["todo!(", "unimplemented!(", "dbg!("] {
                assert!(!text.contains(mark), "{file} holds {mark}");
            }
            // A test that takes long may be left to whoever asks for it, if others have its parts.
            for reason in text.split("#[ignore").skip(1) {
                assert!(reason.starts_with(" = \"long; "), "{file} ignores a test that is not long");
            }
        }
    }
}

/// A path in backticks is one of the repository, or its end. `x` stands for the name of a new kernel.
#[test]
fn documents_name_files_that_exist() {
    const FOLDERS: [&str; 6] = ["src", "shaders", "tests", "benches", "examples", "configs"];
    let paths: Vec<String> = FOLDERS.into_iter().flat_map(paths_below).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = paths.iter().filter(|path| path.starts_with("configs/") && path.ends_with(".md"));
    let root_pages = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"];
    for document in root_pages.into_iter().chain(pages.map(String::as_str)) {
        let text = fs::read_to_string(root.join(document)).expect("a document");
        let quoted = text.split('`').map(|part| part.trim_end_matches('/'));
        let is_path = |part: &&str| {
            let is_ours = part.split_once('/').is_some_and(|(folder, _)| FOLDERS.contains(&folder));
            let is_plain = part.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
            is_plain
                && (is_ours
                    || [".rs", ".wgsl"].iter().any(|end| part.len() > end.len() && part.ends_with(end)))
        };
        for path in quoted.filter(is_path).filter(|path| !path.contains("/x.")) {
            let exists = paths.iter().any(|known| known == path || known.ends_with(&format!("/{path}")));
            assert!(exists, "{document} names {path}, which does not exist");
        }
    }
}

/// `file.rs::name` in a document is a function of that file.
#[test]
fn documents_name_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for document in ["ARCHITECTURE.md", "CONTRIBUTING.md", "configs/FEATURES.md", "configs/MINDFORMERS.md"] {
        let text = fs::read_to_string(root.join(document)).expect("a document");
        for (file, name) in text.split('`').filter_map(|part| part.split_once(".rs::")) {
            let source = fs::read_to_string(root.join(format!("{file}.rs")));
            let source =
                source.unwrap_or_else(|_| panic!("{document} names {file}.rs, which does not exist"));
            assert!(
                source.contains(&format!("fn {name}(")),
                "{document} names {name}, which is not in {file}.rs"
            );
        }
    }
}

/// Otherwise a program that is built after an example, or an example after a program, compiles wgpu again.
#[test]
fn development_dependencies_change_no_features_of_others() {
    // A package may be there twice: for the machine that builds, and for that which runs.
    let features = |edges: &str| packages(edges, "{p}: {f}");
    let (alone, beside) = (features("normal,build"), features("normal,build,dev"));
    assert!(alone.len() > 100, "{} packages", alone.len());
    let differing: Vec<&String> = alone.difference(&beside).collect();
    assert!(
        differing.is_empty(),
        "development dependencies add to these features: {differing:?}; ask for the same under [dependencies]"
    );
}

/// The packages that cargo resolves along `edges`, in cargo's `format`.
fn packages(edges: &str, format: &str) -> BTreeSet<String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.args(["tree", "--offline", "--locked", "--edges", edges, "--prefix=none", "--format", format]);
    let tree = cargo.output().expect("cargo");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8(tree.stdout).expect("text");
    tree.lines().map(|line| line.trim_end_matches(" (*)").to_string()).collect()
}

/// What a program meets first. More have an example; of these each must.
const MET_FIRST: [(&str, &str); 25] = [
    ("src/gpu/device/gpu.rs", "pub struct Gpu "),
    ("src/gpu/device/gpu.rs", "pub fn from_device("),
    ("src/gpu/device/job.rs", "pub async fn run<"),
    ("src/gpu/device/job.rs", "pub struct Job "),
    ("src/gpu/device/job.rs", "pub struct PreparedJob<"),
    ("src/gpu/kernels/kernel.rs", "pub struct Kernel "),
    ("src/gpu/kernels/sources.rs", "pub struct Sources "),
    ("src/gpu/record/recorder.rs", "pub struct Recorder "),
    ("src/gpu/record/tensor.rs", "pub struct Tensor "),
    ("src/gpu/record/params.rs", "macro_rules! params "),
    ("src/ops/matmul.rs", "pub fn matmul("),
    ("src/tape.rs", "pub struct Tape<"),
    ("src/tape/parameter.rs", "pub struct Parameter "),
    ("src/tape/head.rs", "pub fn linear_cross_entropy("),
    ("src/data/batches.rs", "pub fn of_sources("),
    ("src/data/source.rs", "pub struct DataSource "),
    ("src/data/sample_collector.rs", "pub struct SampleCollector "),
    ("src/data/codec.rs", "pub enum Codec "),
    ("src/data/sample_formats/chat/template.rs", "pub struct ChatTemplate "),
    ("src/settings/config.rs", "pub fn in_memory("),
    ("src/train/length.rs", "pub struct RunLength "),
    ("src/train/trainer.rs", "pub struct Trainer<"),
    ("src/train/saving.rs", "pub async fn save("),
    ("src/train/run.rs", "pub async fn run("),
    ("src/infer/opened_model.rs", "pub struct OpenedModel "),
];

#[test]
fn what_a_program_meets_first_has_an_example_that_runs() {
    for (file, item) in MET_FIRST {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).expect(file);
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        let place = lines.iter().position(|line| line.starts_with(item)).expect(item);
        let above = lines[..place].iter().rev();
        let documents = above.take_while(|line| line.starts_with("///") || line.starts_with("#["));
        // A fence with a word, such as `text` or `no_run`, would not run.
        let fences = documents.filter(|line| **line == "/// ```").count();
        assert!(fences >= 2 && fences.is_multiple_of(2), "{file}: `{item}` has no example that runs");
    }
}

//! The packages of a `Cargo.lock` that cargo has downloaded wherever the default features were built.

use std::collections::{HashMap, HashSet};

/// The names of packages that are needed only on some platforms or for some features of other packages, one on each
/// line.
const NOT_EVERYWHERE: &str = include_str!("not_everywhere.txt");

/// The dependencies of features that are off by default.
const OPTIONAL: [&str; 1] = ["mpi"];

/// A package of a lock file.
struct Package<'a> {
    name: &'a str,
    version: &'a str,
    is_downloaded: bool,
    /// Dependencies as the file writes them: `name`, or `name version` where there are several versions.
    dependencies: Vec<&'a str>,
}

/// The packages that come from a registry, as `name-version` in the order of the file, without packages that only some
/// platforms or features need.
pub(super) fn packages(lock: &str) -> impl Iterator<Item = String> {
    let all: Vec<Package<'_>> = lock.split("[[package]]").skip(1).filter_map(Package::read).collect();
    let needed = needed(&all);
    let taken =
        all.into_iter().zip(needed).filter(|(package, is_needed)| *is_needed && package.is_downloaded);
    let names: Vec<String> =
        taken.map(|(package, _)| format!("{}-{}", package.name, package.version)).collect();
    names.into_iter()
}

impl<'a> Package<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let field = |key: &str| -> Option<&'a str> {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""))?;
            line.strip_suffix('"')
        };
        let listed = text.split_once("dependencies = [").map_or("", |(_, rest)| rest);
        let listed = listed.split_once(']').map_or("", |(list, _)| list);
        let dependencies = listed.split(',').map(|entry| entry.trim().trim_matches('"'));
        Some(Self {
            name: field("name")?,
            version: field("version")?,
            is_downloaded: field("source").is_some(),
            dependencies: dependencies.filter(|entry| !entry.is_empty()).collect(),
        })
    }
}

/// Whether each package is a dependency, direct or not, of the workspace's packages wherever they are built.
fn needed(all: &[Package<'_>]) -> Vec<bool> {
    let mut named: HashMap<&str, Vec<usize>> = HashMap::new();
    for (at, package) in all.iter().enumerate() {
        named.entry(package.name).or_default().push(at);
    }
    let mut found: HashSet<usize> = (0..all.len()).filter(|at| !all[*at].is_downloaded).collect();
    let mut waiting: Vec<usize> = found.iter().copied().collect();
    while let Some(at) = waiting.pop() {
        for dependency in &all[at].dependencies {
            let mut words = dependency.split(' ');
            let (name, version) = (words.next().unwrap_or_default(), words.next());
            let is_optional = !all[at].is_downloaded && OPTIONAL.contains(&name);
            if is_optional || NOT_EVERYWHERE.lines().any(|other| other == name) {
                continue;
            }
            let of_name = named.get(name).into_iter().flatten().copied();
            let fitting = of_name.filter(|at| version.is_none_or(|version| all[*at].version == version));
            waiting.extend(fitting.filter(|at| found.insert(*at)));
        }
    }
    (0..all.len()).map(|at| found.contains(&at)).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::process::Command;

    /// A lock file from which `a` and both versions of `b` are taken.
    pub const LOCK: &str = r#"
version = 4

[[package]]
name = "a"
version = "1.0.0"
source = "registry+https://github.com/rust-lang/crates.io-index"
dependencies = [
 "b 2.0.0",
]

[[package]]
name = "b"
version = "1.0.0"
source = "registry+https://github.com/rust-lang/crates.io-index"

[[package]]
name = "b"
version = "2.0.0"
source = "registry+https://github.com/rust-lang/crates.io-index"

[[package]]
name = "c"
version = "1.0.0"
source = "registry+https://github.com/rust-lang/crates.io-index"

[[package]]
name = "gristmill"
version = "0.1.0"
dependencies = [
 "a",
 "b 1.0.0",
 "mpi",
 "windows-link",
]

[[package]]
name = "mpi"
version = "0.8.2"
source = "registry+https://github.com/rust-lang/crates.io-index"
dependencies = [
 "a",
 "c",
]

[[package]]
name = "windows-link"
version = "1.0.0"
source = "registry+https://github.com/rust-lang/crates.io-index"
"#;

    #[test]
    fn packages_of_some_builds_are_left_out() {
        assert_eq!(packages(LOCK).collect::<Vec<_>>(), ["a-1.0.0", "b-1.0.0", "b-2.0.0"]);
    }

    /// Asks cargo for the packages that the default features need here, whatever features the tests are built with.
    #[test]
    fn every_build_has_the_packages_that_are_read() {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
        cargo.args(["tree", "--offline", "--locked", "--edges=normal,build,dev", "--prefix=none"]);
        let tree = cargo.args(["--format={p}"]).output().unwrap();
        assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
        let tree = String::from_utf8(tree.stdout).unwrap();
        let here: HashSet<String> = tree.lines().filter_map(name_and_version).collect();
        let missing: Vec<String> =
            packages(super::super::LOCK).filter(|package| !here.contains(package)).collect();
        assert_eq!(
            missing, [""; 0],
            "not needed by this build: add them to not_everywhere.txt, or what needs them to OPTIONAL"
        );
    }

    /// `name-version` of a line such as `serde v1.0.0 (*)`.
    fn name_and_version(line: &str) -> Option<String> {
        let mut words = line.split(' ');
        Some(format!("{}-{}", words.next()?, words.next()?.strip_prefix('v')?))
    }
}

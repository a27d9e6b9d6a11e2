//! Rules for the folders of a crate: the direction of `use` between folders, and their size.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::{
    read, root,
    source::{self, Source},
};

/// Folders of each crate from the lowest to the highest. A folder may use lower ones only; files
/// beside the folders may use all of them and be used by all.
const ORDERS: &[(&str, &[&str])] = &[
    (
        "services/coordinator/src",
        &[
            "task",
            "policy",
            "telemetry",
            "store",
            "calls",
            "webhooks",
            "engine",
            "cluster",
            "api",
            "push",
            "operators",
            "server",
            "background",
        ],
    ),
    (
        "services/gateway/src",
        &["protocol", "coordinators", "cards", "http", "bindings", "operators"],
    ),
    ("services/worker/src", &["attempt", "sdk", "agents", "runtime", "process"]),
    ("services/client/src", &["protocol", "transport", "api"]),
    (
        "services/chassis/src",
        &["net", "grpc", "auth", "client", "telemetry", "metrics", "server", "process"],
    ),
    ("services/faultline/src", &["remote", "output", "client", "cmd", "testing"]),
    ("services/faultline/src/cmd/bench", &["roles", "load", "figures", "chain", "sections"]),
];

/// Files in one directory, the most.
const FILES_MAX: usize = 20;

/// The path of a file below a folder of this order, and that folder.
fn place<'a>(base: &str, order: &[&'a str], path: &Path) -> Option<&'a str> {
    let below = path.strip_prefix(base).ok()?;
    let first = below.iter().next()?.to_str()?;
    let folder = order.iter().find(|folder| **folder == first)?;
    (below.components().count() > 1).then_some(*folder)
}

/// Names that the root file of a crate makes public, with the paths that they stand for.
fn reexports(sources: &[Source], crate_source: &Path) -> BTreeMap<String, Vec<String>> {
    let Some(lib) = sources.iter().find(|source| source.path == crate_source.join("lib.rs")) else {
        return BTreeMap::new();
    };
    let is_use = |line: &str| line.starts_with("pub use ") || line.starts_with("pub(crate) use ");
    let mut uses = String::new();
    let mut inside = false;
    for line in lib.code.lines() {
        inside |= is_use(line);
        if inside {
            uses += &line.replace("crate::", "").replace("pub use ", "pub use crate::");
            uses.push('\n');
        }
        inside &= !line.ends_with(';');
    }
    let uses = Source { path: lib.path.clone(), code: uses.clone(), text: uses };
    let paths = uses.crate_paths(&[]).into_iter().map(|(_, path)| path);
    paths.filter_map(|path| Some((path.last()?.clone(), path))).collect()
}

/// The folders that the header of a `mod.rs` allows, after the words `May use:`, if it has them.
fn stated<'a>(base: &str, order: &[&'a str], folder: &str) -> Option<Vec<&'a str>> {
    let path = root().join(base).join(folder).join("mod.rs");
    let text = read(&path);
    let header = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    let header = header.collect::<Vec<_>>().join(" ");
    let (_, allowed) = header.split_once("May use: ")?;
    let allowed = allowed.split('.').next()?;
    let names = |text: &str| {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words: Vec<_> = text.split(|c| !is_name(c)).collect();
        order.iter().copied().filter(|name| words.contains(name)).collect::<Vec<_>>()
    };
    let Some((_, but)) = allowed.split_once("every other folder") else {
        return Some(names(allowed));
    };
    let but = names(but);
    Some(order.iter().copied().filter(|name| !but.contains(name)).collect())
}

#[test]
fn folders_use_only_the_folders_below_them() {
    let sources = source::all();
    let tests = source::test_files(&sources);
    let mut wrong = Vec::new();
    for (base, order) in ORDERS {
        let at = base.find("/src").expect("every order is below a src folder") + "/src".len();
        let crate_source = Path::new(&base[..at]);
        let prefix = source::module_of(Path::new(base[at..].trim_start_matches('/')));
        let reexports = reexports(&sources, crate_source);
        let mut allowed: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (rank, folder) in order.iter().enumerate() {
            let lower = &order[..rank];
            let stated = stated(base, order, folder).unwrap_or_else(|| {
                wrong.push(format!("{base}/{folder}/mod.rs lacks the line `//! May use: … .`"));
                lower.to_vec()
            });
            let both = stated.into_iter().filter(|folder| lower.contains(folder));
            allowed.insert(folder, both.collect());
        }
        for source in sources.iter().filter(|source| !tests.contains(&source.path)) {
            let Some(own) = place(base, order, &source.path) else { continue };
            let below = source.path.strip_prefix(crate_source).expect("it is below");
            for (line, path) in source.crate_paths(&source::module_of(below)) {
                let path = match path.first().and_then(|first| reexports.get(first)) {
                    Some(real) if !order.contains(&path[0].as_str()) => real,
                    _ => &path,
                };
                let Some(used) = path.strip_prefix(&prefix[..]).and_then(<[String]>::first) else {
                    continue;
                };
                let is_folder = order.contains(&used.as_str());
                if is_folder && used != own && !allowed[own].contains(&used.as_str()) {
                    let (name, path) = (source.name(), path.join("::"));
                    wrong.push(format!("{name}:{line}: {own} may not use {used}: {path}"));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "folders use only lower ones; move the item down, or correct the order:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn folders_of_services_are_in_the_table_of_directions() {
    let mut missing = Vec::new();
    for source in source::all().iter().filter(|source| source.path.ends_with("mod.rs")) {
        let Some(folder) = source.path.parent() else { continue };
        let base = folder.parent().unwrap_or(folder).to_string_lossy().into_owned();
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !base.starts_with("services/") || !base.ends_with("/src") || name == "tests" {
            continue;
        }
        let order = ORDERS.iter().find(|(of, _)| *of == base);
        if !order.is_some_and(|(_, order)| order.contains(&name.as_str())) {
            missing.push(folder.display().to_string());
        }
    }
    for (base, order) in ORDERS {
        let gone = order.iter().filter(|folder| !root().join(base).join(folder).is_dir());
        missing.extend(gone.map(|folder| format!("{base}/{folder}, which does not exist")));
    }
    assert!(missing.is_empty(), "ORDERS in tests/tidy/folders.rs is wrong about {missing:#?}");
}

#[test]
fn directories_of_services_hold_at_most_twenty_files() {
    let mut counts: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for source in source::all().iter().filter(|source| source.path.starts_with("services")) {
        let directory = source.path.parent().expect("a file is in a directory");
        *counts.entry(directory.to_owned()).or_default() += 1;
    }
    counts.retain(|_, count| *count > FILES_MAX);
    assert!(counts.is_empty(), "more than {FILES_MAX} .rs files in a directory: {counts:#?}");
}

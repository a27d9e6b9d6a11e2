//! A reader of Rust sources: the structs that serde deserializes, with the names, types and doc
//! comments of their fields. It parses the layout of rustfmt and no other.

use std::{fs, path::Path, sync::LazyLock};

use crate::root;

/// The sources of all crates below `services`.
pub(crate) struct Source {
    /// The package and the text of each file.
    files: Vec<(String, String)>,
}

/// A struct that is a table of the configuration.
#[derive(Clone, Debug)]
pub(crate) struct Struct {
    pub(crate) package: String,
    pub(crate) doc: String,
    /// The fields that serde reads, in their order.
    pub(crate) fields: Vec<Field>,
}

/// One field of a struct.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) ty: String,
    pub(crate) doc: String,
    /// Whether a table without this key is an error.
    pub(crate) is_required: bool,
}

/// The comments and attributes before an item.
#[derive(Default)]
struct Head {
    doc: String,
    attributes: String,
}

impl Source {
    /// The sources, read once per process.
    pub(crate) fn get() -> &'static Self {
        static SOURCE: LazyLock<Source> = LazyLock::new(Source::read);
        &SOURCE
    }

    fn read() -> Self {
        let mut files = Vec::new();
        let services = root().join("services");
        for entry in fs::read_dir(&services).expect("a directory can be read") {
            let name = entry.expect("an entry can be read").file_name();
            let name = name.to_string_lossy().into_owned();
            let package =
                if name == "faultline" { name.clone() } else { format!("faultline-{name}") };
            find(&services.join(&name).join("src"), &package, &mut files);
        }
        Self { files }
    }

    /// The struct of this name in a package.
    pub(crate) fn find(&self, package: &str, name: &str) -> Struct {
        let mut found = self.structs(name);
        found.retain(|found| found.package == package);
        assert_eq!(found.len(), 1, "structs {name} in {package}");
        found.remove(0)
    }

    /// The struct of a field's type, if it is a table of the configuration. The package of the
    /// field has precedence.
    pub(crate) fn struct_of(&self, package: &str, ty: &str) -> Option<Struct> {
        let (first, name) = ty.rsplit_once("::").unwrap_or((package, ty));
        let first = first.replace('_', "-");
        let package = if first.starts_with("faultline-") { first.as_str() } else { package };
        let found = self.structs(name);
        let own = found.iter().find(|found| found.package == package);
        own.or(found.first()).cloned()
    }

    /// The doc comment of the enum of this name; the package of the field has precedence.
    pub(crate) fn doc_of_enum(&self, package: &str, name: &str) -> String {
        let own = self.files.iter().filter(|(found, _)| found == package);
        let others = self.files.iter().filter(|(found, _)| found != package);
        let start = format!("pub enum {name} {{");
        let found = own.chain(others).find_map(|(_, text)| item(text, &start));
        found.map(|(head, _)| head.doc).unwrap_or_default()
    }

    /// The structs of this name that serde deserializes.
    fn structs(&self, name: &str) -> Vec<Struct> {
        let start = format!("pub struct {name} {{");
        let found = self.files.iter().filter_map(|(package, text)| {
            let (head, body) = item(text, &start)?;
            let has_default = head.attributes.contains("#[serde(default");
            head.attributes.contains("Deserialize").then(|| Struct {
                package: package.clone(),
                doc: head.doc,
                fields: fields(&body, has_default),
            })
        });
        found.collect()
    }
}

fn find(directory: &Path, package: &str, files: &mut Vec<(String, String)>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries {
        let path = entry.expect("an entry can be read").path();
        if path.is_dir() {
            find(&path, package, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source can be read");
            files.push((package.to_owned(), text));
        }
    }
}

/// The head and the lines of the item that begins with this line.
fn item(text: &str, start: &str) -> Option<(Head, Vec<String>)> {
    let mut head = Head::default();
    let mut lines = text.lines();
    for line in lines.by_ref() {
        if line == start {
            let body = lines.take_while(|line| *line != "}").map(|line| line.trim().to_owned());
            return Some((head, body.collect()));
        }
        head.read(line);
    }
    None
}

fn fields(lines: &[String], has_default: bool) -> Vec<Field> {
    let mut fields = Vec::new();
    let mut head = Head::default();
    for line in lines {
        let field = line.strip_prefix("pub ").and_then(|line| line.strip_suffix(','));
        if let Some((name, ty)) = field.and_then(|field| field.split_once(": ")) {
            let Head { doc, attributes } = std::mem::take(&mut head);
            let has_default = has_default || attributes.contains("default");
            if !attributes.contains("#[serde(skip)]") {
                fields.push(Field {
                    name: name.to_owned(),
                    ty: ty.to_owned(),
                    doc,
                    is_required: !has_default && !ty.starts_with("Option<"),
                });
            }
        } else {
            head.read(line);
        }
    }
    fields
}

impl Head {
    fn read(&mut self, line: &str) {
        let line = line.trim();
        if let Some(doc) = line.strip_prefix("///") {
            self.doc += if self.doc.is_empty() { "" } else { " " };
            self.doc += doc.trim();
        } else if line.starts_with("#[") {
            self.attributes += line;
        } else {
            *self = Self::default();
        }
    }
}

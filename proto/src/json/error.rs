//! Errors of the parser, with the path of the field. The path is collected while an error
//! propagates, one step for each level, so valid input pays nothing for it.

use std::{
    cell::{Cell, RefCell},
    fmt::{self, Write},
};

use serde::de;

use crate::allocation::{Budget, Exceeded};

/// The deepest nesting of a Value. A level takes up to three of the hundred that prost decodes, and
/// parsed values must be decodable again after their way through the mesh.
pub const VALUE_DEPTH_MAX: usize = 24;

/// The longest quote of input in an error.
const MAX_QUOTE: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Not JSON.
    Syntax,
    /// JSON, but not of this message.
    Shape,
    /// The message would take more memory than it may.
    TooLarge,
}

/// An error of the parser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: Kind,
    path: String,
    description: String,
}

impl Error {
    pub(super) fn of(kind: Kind, description: String) -> Self {
        Error { kind, path: String::new(), description }
    }

    pub(super) fn syntax(description: String) -> Self {
        Error::of(Kind::Syntax, description)
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The field, like `message.parts[0].text`; empty at the root.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The problem, without the path.
    pub fn description(&self) -> &str {
        &self.description
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            f.write_str(&self.description)
        } else {
            write!(f, "{}: {}", self.path, self.description)
        }
    }
}

impl std::error::Error for Error {}

/// The state of one parse beside its result: the path of an error, the depth, and the options.
#[derive(Debug)]
pub struct Trail {
    steps: RefCell<Vec<Step>>,
    refusal: RefCell<Option<String>>,
    nesting: Cell<usize>,
    memory: Budget,
    is_exceeded: Cell<bool>,
    /// Unknown enum names become zero.
    pub(super) is_lenient: bool,
    /// A timestamp without a zone is UTC.
    pub(super) takes_zoneless: bool,
}

#[derive(Debug)]
enum Step {
    Field(&'static str),
    Index(usize),
    Key(String),
}

impl Trail {
    pub(super) fn bounded() -> Self {
        Trail {
            steps: RefCell::default(),
            refusal: RefCell::default(),
            nesting: Cell::new(VALUE_DEPTH_MAX),
            memory: Budget::new(usize::MAX),
            is_exceeded: Cell::new(false),
            is_lenient: false,
            takes_zoneless: false,
        }
    }

    /// For input of a caller.
    pub(super) fn within(bytes: usize) -> Self {
        Trail { memory: Budget::new(bytes), ..Trail::bounded() }
    }

    pub(super) fn lenient() -> Self {
        Trail { is_lenient: true, takes_zoneless: true, ..Trail::bounded() }
    }

    pub(super) fn of_server() -> Self {
        Trail { takes_zoneless: true, ..Trail::bounded() }
    }

    pub(super) fn unbounded() -> Self {
        let trail = Trail::bounded();
        trail.nesting.set(usize::MAX);
        trail
    }

    /// The error for a value that is JSON but not of the expected type.
    #[cold]
    pub(super) fn refuse<E: de::Error>(&self, description: impl Into<String>) -> E {
        self.refusal.replace(Some(description.into()));
        E::custom("")
    }

    #[cold]
    pub(super) fn expected<E: de::Error>(&self, expected: &str, found: &str) -> E {
        self.refuse(format!("expected {expected}, found {found}"))
    }

    #[cold]
    pub(super) fn repeated<E: de::Error>(&self, key: &str) -> E {
        self.refuse(format!("key {} is given twice", quoted(key)))
    }

    #[cold]
    pub(super) fn at_field(&self, name: &'static str) {
        self.steps.borrow_mut().push(Step::Field(name));
    }

    #[cold]
    pub(super) fn at_index(&self, index: usize) {
        self.steps.borrow_mut().push(Step::Index(index));
    }

    #[cold]
    pub(super) fn at_key(&self, key: &str) {
        self.steps.borrow_mut().push(Step::Key(key.to_owned()));
    }

    /// One more element of a list.
    pub(super) fn element<T, E: de::Error>(&self) -> Result<(), E> {
        self.memory.element::<T>().map_err(|Exceeded| self.exceeded())
    }

    /// One more entry of a map of texts to `T` that has so many.
    pub(super) fn entry<T, E: de::Error>(&self, before: usize) -> Result<(), E> {
        self.memory.entry::<T>(before).map_err(|Exceeded| self.exceeded())
    }

    #[cold]
    fn exceeded<E: de::Error>(&self) -> E {
        self.is_exceeded.set(true);
        self.refuse("too many small elements")
    }

    /// Descends one level into a Value; `leave` ascends.
    pub(super) fn enter<E: de::Error>(&self) -> Result<(), E> {
        match self.nesting.get().checked_sub(1) {
            Some(left) => self.nesting.set(left),
            None => return Err(self.refuse(format!("nested deeper than {VALUE_DEPTH_MAX} levels"))),
        }
        Ok(())
    }

    pub(super) fn leave(&self) {
        self.nesting.set(self.nesting.get() + 1);
    }

    pub(super) fn into_error(self, error: &serde_json::Error) -> Error {
        let mut path = String::new();
        for step in self.steps.into_inner().iter().rev() {
            step.append(&mut path);
        }
        let kind = if self.is_exceeded.get() { Kind::TooLarge } else { Kind::Shape };
        match self.refusal.into_inner() {
            Some(description) => Error { kind, path, description },
            None => Error { kind: Kind::Syntax, path, description: error.to_string() },
        }
    }
}

impl Step {
    fn append(&self, path: &mut String) {
        match self {
            Step::Field(name) => dotted(path, name),
            Step::Index(index) => write!(path, "[{index}]").expect("a String takes everything"),
            Step::Key(key) if is_word(key) => dotted(path, key),
            Step::Key(key) => {
                write!(path, "[{}]", quoted(key)).expect("a String takes everything");
            }
        }
    }
}

fn dotted(path: &mut String, name: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(name);
}

fn is_word(key: &str) -> bool {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || char == '_' || char == '-';
    (1..=MAX_QUOTE).contains(&key.len()) && key.chars().all(is_plain)
}

/// A text of the input in quotes, truncated.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTE) {
        Some((end, _)) => format!("{:?}", format!("{}…", &text[..end])),
        None => format!("{text:?}"),
    }
}

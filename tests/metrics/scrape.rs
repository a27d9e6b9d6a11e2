//! The answer of `/metrics`, parsed as by Prometheus.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
    process::{Command, Stdio},
};

use faultline_tests::Rpc;

/// One series: its name, its labels, its value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

/// All series of one scrape, with its text.
#[derive(Clone, Debug)]
pub(crate) struct Scraped {
    pub(crate) text: String,
    pub(crate) series: Vec<Series>,
}

impl Scraped {
    pub(crate) async fn of(rpc: &Rpc) -> Self {
        let reply = rpc.path("/metrics").get().await;
        assert_eq!(reply.status, 200, "{:?}", reply.body);
        let kind = reply.headers["content-type"].to_str().unwrap();
        assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
        Self::read(String::from_utf8(reply.body.to_vec()).unwrap())
    }

    fn read(text: String) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let series = lines.map(series).collect();
        Self { text, series }
    }

    /// The series of this name with these labels, and any others.
    pub(crate) fn find(&self, name: &str, labels: &[(&str, &str)]) -> Vec<&Series> {
        let has = |series: &&Series| {
            let same = |(key, value): &(&str, &str)| {
                series.labels.get(*key).map(String::as_str) == Some(value)
            };
            series.name == name && labels.iter().all(same)
        };
        self.series.iter().filter(has).collect()
    }

    /// The sum of their values.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.find(name, labels).iter().map(|series| series.value).sum()
    }

    /// Every name with the labels of its series.
    pub(crate) fn names(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut names: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for series in &self.series {
            let labels = series.labels.keys().map(String::as_str);
            names.entry(&series.name).or_default().extend(labels);
        }
        names
    }

    /// Every series without its value.
    pub(crate) fn keys(&self) -> BTreeSet<String> {
        self.series.iter().map(|s| format!("{}{:?}", s.name, s.labels)).collect()
    }

    /// Checks format and names with promtool.
    pub(crate) fn check(&self) {
        let mut promtool = Command::new("promtool");
        promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = promtool.spawn().expect("promtool is installed, as by tests/run");
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(self.text.as_bytes()).unwrap();
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{errors}");
    }
}

/// Parses `name{key="value",…} 1.5`. Labels of the mesh contain no quotes and no commas.
fn series(line: &str) -> Series {
    let (head, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value: {line}"));
    let (name, rest) = head.split_once('{').unwrap_or((head, "}"));
    let pairs = rest.strip_suffix('}').unwrap_or_else(|| panic!("no end of labels: {line}"));
    let pairs = pairs.strip_suffix('"').unwrap_or_default().split("\",");
    let pairs = pairs.filter_map(|pair| pair.split_once("=\""));
    let labels = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let value = value.parse().unwrap_or_else(|e| panic!("{line}: {e}"));
    Series { name: name.to_owned(), labels, value }
}

//! The one binary as a library: a command-line interface to every service of the mesh, and the
//! whole mesh in one process (`LocalMesh`), which `faultline up` and the tests run. The only crate
//! that depends on more than one service.
//!
//! Modules, each of which may use those before it: exit, task_tree, remote, config, local_mesh,
//! service, output, client, cmd. `testing` may use config and local_mesh.

pub mod config;
pub mod exit;
pub mod local_mesh;
pub mod output;
pub mod remote;
pub mod testing;

mod client;
mod cmd;
mod service;
mod task_tree;

use std::{ffi::OsString, io};

use clap::Parser;
use faultline_chassis::config::Environment;

pub use config::Config;
pub use exit::Exit;
pub use local_mesh::LocalMesh;

/// A mesh for A2A agents, where failures, cancellation and questions cross every boundary whole.
#[derive(Debug, Parser)]
#[command(name = "faultline", version, max_term_width = 100, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: cmd::Command,
}

const AFTER_HELP: &str = "\
Examples:
  faultline up                          start a whole mesh in this process
  faultline send echo \"hello\"           run a task and follow it
  faultline explain RATE_LIMITED        the meaning of a reason, and the party that acts
  faultline explain TASK                the history of a task, hop by hop
  faultline top                         agents, workers, queues and failures, live

Exit codes: 0 success, 3 waiting for an answer, 64 usage, 65 bad input, 69 unavailable,
70 failed, 75 failed but retryable, 77 denied, 78 bad configuration.";

/// Runs one command line to its end. Configuration is read from the variables in `env`.
pub fn run(args: impl IntoIterator<Item = OsString>, env: &Environment) -> Exit {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // If help cannot be printed, no message about it can be printed either.
            let _ = error.print();
            return if error.use_stderr() { Exit::USAGE } else { Exit::OK };
        }
    };
    cli.command.run(env).unwrap_or_else(|error| {
        let broken_pipe = |e: &(dyn std::error::Error + 'static)| {
            e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
        };
        // A closed pipe is no failure: the reader of the output has stopped reading.
        if error.chain().any(broken_pipe) {
            return Exit::OK;
        }
        eprintln!("{} {error:#}", output::style::Style::stderr().red("error:"));
        exit::of_error(&error)
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn exit(args: &[&str]) -> Exit {
        run(args.iter().map(OsString::from), &Environment::new())
    }

    #[test]
    fn clap_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_documents_its_arguments_with_examples() {
        let mut names: Vec<String> =
            Cli::command().get_subcommands().map(|c| c.get_name().to_owned()).collect();
        names.sort();
        for name in &names {
            assert_eq!(exit(&["faultline", name, "--help"]), Exit::OK, "{name}");
            let mut command = Cli::command();
            let command = command.find_subcommand_mut(name).unwrap();
            assert!(command.get_about().is_some(), "{name} has a description");
            let help = command.render_long_help().to_string();
            assert!(help.contains("Examples:"), "{name} has examples");
            for argument in command.get_arguments() {
                assert!(
                    argument.get_help().is_some(),
                    "{name}: {} is documented",
                    argument.get_id()
                );
            }
        }
        let expected = [
            "agents",
            "answer",
            "cancel",
            "config",
            "coordinator",
            "explain",
            "failures",
            "gateway",
            "get",
            "list",
            "send",
            "top",
            "up",
            "watch",
            "worker",
        ];
        for name in expected {
            assert!(names.iter().any(|n| n == name), "{name}");
        }
    }

    #[test]
    fn invalid_command_lines_exit_with_usage_error() {
        for args in [
            &["faultline"][..],
            &["faultline", "sned"],
            &["faultline", "send", "echo"],
            &["faultline", "up", "--listen", "nowhere"],
            &["faultline", "gateway", "--threads", "0"],
            &["faultline", "list", "--state", "broken"],
            &["faultline", "list", "--limit", "0"],
            &["faultline", "list", "--all", "--context", "c"],
            &["faultline", "failures", "--since", "soon"],
        ] {
            assert_eq!(exit(args), Exit::USAGE, "{args:?}");
        }
    }

    /// The words of a shell command, up to its first pipe, redirection, `&` or comment.
    fn words(line: &str) -> Vec<String> {
        let mut words = Vec::new();
        let mut word = None::<String>;
        let mut quote = None;
        for c in line.chars() {
            match quote {
                Some(open) if c == open => quote = None,
                Some(_) => word.get_or_insert_default().push(c),
                None if "'\"".contains(c) => {
                    quote = Some(c);
                    word.get_or_insert_default();
                }
                None if "|&#>".contains(c) => break,
                None if c.is_whitespace() => words.extend(word.take()),
                None => word.get_or_insert_default().push(c),
            }
        }
        words.extend(word);
        let first = words.iter().position(|word| !word.contains('='));
        words.split_off(first.unwrap_or(words.len()))
    }

    /// The commands of a document: lines of its code blocks, after the prompt if there is one, and
    /// text between backquotes.
    fn commands(text: &str) -> Vec<Vec<String>> {
        let mut lines = Vec::new();
        for (at, part) in text.split("```").enumerate() {
            let prompt = if part.contains("\n$ ") { "$ " } else { "" };
            match at % 2 {
                0 => lines.extend(part.split('`').skip(1).step_by(2)),
                _ => lines.extend(part.lines().filter_map(|line| line.strip_prefix(prompt))),
            }
        }
        let commands = lines.into_iter().map(words);
        commands.filter(|words| words.len() > 1 && words[0] == "faultline").collect()
    }

    #[test]
    fn commands_quoted_in_documents_parse() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for file in [
            "README.md",
            "docs/tour.md",
            "docs/operating.md",
            "docs/writing-agents.md",
            "docs/benchmarks.md",
            "deploy/README.md",
            "deploy/helm/faultline/README.md",
            "deploy/prometheus/rules.yaml",
        ] {
            let text = std::fs::read_to_string(root.join(file)).unwrap();
            let commands = commands(&text.replace("{{ $labels.agent }}", "NAME"));
            assert!(!commands.is_empty(), "{file}");
            for command in commands {
                // A document may name a command without its arguments.
                let below = |of: clap::Command, word| of.find_subcommand(word).cloned();
                let named = command[1..].iter().try_fold(Cli::command(), below).is_some();
                let read = Cli::try_parse_from(&command).map(drop);
                assert!(named || read.is_ok(), "{file}: {command:?}: {}", read.unwrap_err());
            }
        }
    }

    #[test]
    fn invalid_configuration_and_unreachable_servers_have_their_own_exit_codes() {
        let missing = ["faultline", "config", "--config", "/nonexistent/faultline.toml"];
        assert_eq!(exit(&missing), Exit::CONFIG);
        let env = [("FAULTLINE_GATEWAY__LSITEN".to_owned(), "x".to_owned())].into();
        assert_eq!(run(["faultline", "config"].map(OsString::from), &env), Exit::CONFIG);
        let away = ["faultline", "get", "t", "--gateway", "http://127.0.0.1:1"];
        assert_eq!(exit(&away), Exit::UNAVAILABLE);
        let bad = ["faultline", "get", "t", "--gateway", "gopher://x"];
        assert_eq!(exit(&bad), Exit::BAD_INPUT);
    }

    #[test]
    fn reason_is_explained_without_a_mesh() {
        assert_eq!(exit(&["faultline", "explain", "rate_limited"]), Exit::OK);
        assert_eq!(exit(&["faultline", "explain", "RATE_LIMITED", "--json"]), Exit::OK);
        assert_eq!(exit(&["faultline", "explain"]), Exit::OK);
        assert_eq!(exit(&["faultline", "explain", "RATE_LIMTED"]), Exit::BAD_INPUT);
    }
}

//! `sh dry-run` blocks: their commands accept the arguments. The blocks of a document form one
//! script in a directory of its own. Stand-ins replace commands that would start a server or reach
//! a cluster: helm renders the chart, the binary parses its arguments, named files must exist. All
//! other commands, such as openssl, run unchanged.

use std::{
    collections::{BTreeMap, HashSet},
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tempfile::TempDir;

use crate::{
    blocks::{self, Block},
    compile::target,
    root,
};

#[test]
fn dry_run_blocks_have_valid_arguments() {
    let mut documents: BTreeMap<String, Vec<Block>> = BTreeMap::new();
    for block in blocks::all() {
        documents.entry(block.document.clone()).or_default().push(block);
    }
    let helm = helm();
    let wrong: Vec<_> = documents.values().filter_map(|blocks| run(blocks, &helm).err()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs the blocks of one document.
fn run(blocks: &[Block], helm: &PathBuf) -> Result<(), String> {
    let scratch = TempDir::new().expect("there is room");
    let at = scratch.path();
    let stand_ins = root().join("services/faultline/tests/documents/stand-ins");
    symlink(root().join("deploy"), at.join("deploy")).expect("there is room");
    // tests/run itself would run this test again.
    fs::create_dir(at.join("tests")).expect("there is room");
    symlink("/bin/true", at.join("tests/run")).expect("there is room");
    let mut script = "set -euo pipefail\n".to_owned();
    for block in blocks {
        let name = block.lines.first().and_then(|line| line.strip_prefix("# "));
        let name = name.filter(|name| block.is("yaml", None) && name.ends_with(".yaml"));
        if let Some(name) = name {
            fs::write(at.join(name), block.text()).expect("there is room");
        }
        // Roles are run by another test, if their database is there.
        if block.is("sh", Some("dry-run")) || block.is("sh", Some("roles")) {
            let given = block.given.clone().unwrap_or_default();
            script += &format!("BLOCK={block}\n{given}\n{}", block.text());
        }
    }
    script += "wait\n";
    let paths = env::var_os("PATH").unwrap_or_default();
    let paths = [stand_ins].into_iter().chain(env::split_paths(&paths));
    let failed = at.join("failed");
    let output = Command::new("bash")
        .args(["-c", &format!("trap 'echo \"$BLOCK: $BASH_COMMAND\" >&2' ERR\n{script}")])
        .current_dir(at)
        .env("PATH", env::join_paths(paths).expect("a path has no colon"))
        .env("FAULTLINE", env!("CARGO_BIN_EXE_faultline"))
        .env("HELM", helm)
        .env("ROOT", root())
        .env("FAILED", &failed)
        .stdin(Stdio::null())
        .output()
        .expect("bash runs");
    let mut failed = fs::read_to_string(failed).unwrap_or_default();
    for secret in unused_secrets(at) {
        failed += &format!("the chart refers to no secret {secret}\n");
    }
    if output.status.success() && failed.is_empty() {
        return Ok(());
    }
    let document = &blocks[0].document;
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{document}: {}\n{said}\nwrong:\n{failed}", output.status))
}

/// Secrets that kubectl created and that no rendered manifest refers to.
fn unused_secrets(at: &Path) -> Vec<String> {
    let read = |name: &str| fs::read_to_string(at.join(name)).unwrap_or_default();
    let manifests = read(".helm-manifests");
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
    let names: HashSet<_> = manifests.split(|c| !is_name(c)).collect();
    let made = read(".kubectl-secrets");
    made.lines().filter(|name| !names.contains(*name)).map(str::to_owned).collect()
}

/// The helm binary that the tests of the chart install.
fn helm() -> PathBuf {
    let into = target().join("chart");
    let done = Command::new(root().join("tests/chart/install")).arg(&into).status();
    assert!(done.is_ok_and(|status| status.success()), "helm cannot be installed: see above");
    into.join("helm")
}

#[test]
fn dry_run_rejects_invalid_commands() {
    let helm = helm();
    let install = "helm install mesh deploy/helm/faultline -n agents --set image.repository=x";
    let refused = |text: &str| {
        let document = format!("```sh dry-run\n{install}\n{text}\n```\n");
        run(&blocks::blocks_of("d.md", &document), &helm).is_err()
    };
    for text in [
        "docker frobnicate faultline-coordinator-1",
        "docker compose -f deploy/compose.yaml frobnicate",
        "docker compose -f deploy/compose.yaml up --scale coordinators=3",
        "docker compose -f deploy/compose.yaml restart database",
        "docker kill faultline-nobody-1",
        "docker run --rm faultline:0.1.0 up --nonsense",
        "kubectl -n agents get pods --frobnicate",
        "kubectl -n agents rollout restart deployment/mesh-nobody",
        "kubectl -n agents port-forward svc/mesh-faultline-nobody 8080:80",
        "kubectl -n agents create secret generic faultline-typo --from-literal=token=x",
        "kubectl -n agents get pods -l faultline.dev/pool=nobody",
        "faultline send echo",
        "faultline answer",
        "faultline send echo hello --nonsense",
    ] {
        assert!(refused(text), "{text}");
    }
    for text in [
        "docker kill faultline-coordinator-1",
        "docker compose -f deploy/compose.yaml up -d --scale coordinator=3",
        "kubectl -n agents port-forward svc/mesh-faultline-gateway 8080:80",
        "kubectl -n agents get pods -w -l faultline.dev/pool=built-in",
        "kubectl -n agents create secret generic faultline-auth --from-literal=tokens=x",
        "faultline send echo hello",
    ] {
        assert!(!refused(text), "{text}");
    }
}

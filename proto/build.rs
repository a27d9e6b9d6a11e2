//! Compiles the contract with protox: no protoc is needed and no generated code is checked in. The
//! results are the prost messages and tonic services, the descriptor set for tests and reflection,
//! and the ProtoJSON of every message.

use std::{env, error::Error, fs, path::PathBuf};

use protox::{
    Compiler,
    file::{ChainFileResolver, File, FileResolver, GoogleFileResolver, IncludeFileResolver},
};

#[path = "build/allocation.rs"]
mod allocation;
#[path = "build/json.rs"]
mod json;

const FILES: &[&str] = &[
    "a2a/v1/a2a.proto",
    "faultline/v1/failure.proto",
    "faultline/v1/hub.proto",
    "faultline/v1/cluster.proto",
    "faultline/v1/link.proto",
    "faultline/v1/mesh.proto",
    "faultline/v1/task.proto",
    "keda/externalscaler.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    for path in ["build.rs", "build", "a2a", "faultline", "keda"] {
        println!("cargo:rerun-if-changed={path}");
    }
    let out = PathBuf::from(env::var("OUT_DIR")?);

    let mut resolver = ChainFileResolver::new();
    resolver.add(IncludeFileResolver::new(".".into()));
    resolver.add(GoogleApi);
    resolver.add(GoogleFileResolver::new());
    let mut compiler = Compiler::with_file_resolver(resolver);
    compiler.include_imports(true).open_files(FILES)?;

    // The encoded set keeps custom options (google.api.http), which prost's own types drop.
    fs::write(out.join("descriptor.bin"), compiler.encode_file_descriptor_set())?;

    fs::write(out.join("json.rs"), json::generate(&compiler.descriptor_pool())?)?;
    let layouts = allocation::generate(&compiler.descriptor_pool())?;
    fs::write(out.join("allocation.rs"), layouts)?;

    let mut config = prost_build::Config::new();
    // Ordered maps: equal messages have equal bytes and equal JSON.
    config
        .enable_type_names()
        // Large and rare variants are boxed: every reply is moved, and should not have their size.
        .boxed(".faultline.v1.Reply.body.inspect")
        .boxed(".faultline.v1.Reply.body.failure")
        .boxed(".faultline.v1.Reply.body.task")
        .boxed(".faultline.v1.Reply.body.card")
        .boxed(".faultline.v1.Reply.body.push")
        .bytes([".faultline.v1"])
        .btree_map(["."]);
    // Without `connect`: only `chassis::client` dials.
    tonic_prost_build::configure()
        .build_transport(false)
        .codec_path("crate::codec::BoundedCodec")
        .compile_fds_with_config(compiler.file_descriptor_set(), config)?;
    Ok(())
}

/// The two files of google.api that the A2A contract imports, reduced to the used definitions.
struct GoogleApi;

impl FileResolver for GoogleApi {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        let source = match name {
            "google/api/annotations.proto" => ANNOTATIONS,
            "google/api/field_behavior.proto" => FIELD_BEHAVIOR,
            _ => return Err(protox::Error::file_not_found(name)),
        };
        File::from_source(name, source)
    }
}

const ANNOTATIONS: &str = r#"
syntax = "proto3";
package google.api;
import "google/protobuf/descriptor.proto";
extend google.protobuf.MethodOptions { HttpRule http = 72295728; }
message HttpRule {
  string selector = 1;
  oneof pattern {
    string get = 2;
    string put = 3;
    string post = 4;
    string delete = 5;
    string patch = 6;
  }
  string body = 7;
  repeated HttpRule additional_bindings = 11;
}
"#;

const FIELD_BEHAVIOR: &str = r#"
syntax = "proto3";
package google.api;
import "google/protobuf/descriptor.proto";
extend google.protobuf.FieldOptions { repeated FieldBehavior field_behavior = 1052; }
enum FieldBehavior { FIELD_BEHAVIOR_UNSPECIFIED = 0; OPTIONAL = 1; REQUIRED = 2; }
"#;

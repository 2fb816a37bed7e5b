//! The fuzz targets of the workspace: one module per parser of foreign bytes.
//!
//! Each module has a function `run`, which panics if an input breaks one of the properties that the module lists. The
//! libFuzzer programs in `fuzz/fuzz_targets` call these functions with generated inputs. The tests in
//! `fuzz/targets/tests` call them with every file in `fuzz/corpus`.

pub mod agent_configuration;
pub mod api;
pub mod authorization;
pub mod cluster_audit;
pub mod config;
pub mod disabled;
pub mod environment_template;
pub mod gitlab_tunnel;
pub mod headers;
pub mod hello;
pub mod identity;
mod input;
pub mod kubeconfig;
pub mod manifests;
pub mod oidc;
pub mod peer;
pub mod policy;
pub mod prometheus;
pub mod promql;
pub mod proxy_header;
pub mod redis;
pub mod references;
pub mod target;
pub mod trace_context;

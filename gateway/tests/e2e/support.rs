//! The vocabulary of the tests.

mod agent;
mod cluster;
mod curl;
mod kas;
mod kubeconfig;
mod kubectl;
mod process;
mod prometheus;
mod recorder;
mod simulator;
mod skip;
mod tls;
mod world;

pub(crate) use self::{
    agent::{Agent, AgentOptions},
    cluster::{Cluster, Namespace, file, pod},
    curl::{Reply, curl},
    kas::{Kas, KasOptions, Tokens},
    kubectl::{Kubectl, assert_same_among, normal},
    process::{Process, code, eventually, run},
    prometheus::{Prometheus, Server},
    recorder::Recorder,
    simulator::Simulator,
    skip::skipped,
    tls::Certificates,
    world::{AGENT, World},
};

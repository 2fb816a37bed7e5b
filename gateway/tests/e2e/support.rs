//! The vocabulary of the tests.

mod agent;
mod cluster;
mod curl;
mod fleet;
mod kas;
mod kubeconfig;
mod kubectl;
mod networks;
mod process;
mod prometheus;
mod recorder;
mod redis;
mod relay;
mod simulator;
mod skip;
mod tls;
mod version;
mod world;

pub(crate) use self::{
    agent::{Agent, AgentOptions},
    cluster::{Cluster, Namespace, file, pod},
    curl::{Reply, curl},
    fleet::{Fleet, flow, secret},
    kas::{Kas, KasOptions, Tokens},
    kubectl::{Kubectl, assert_same_among, normal},
    networks::{Networks, address},
    process::{Process, code, eventually, run},
    prometheus::{Prometheus, Server},
    recorder::Recorder,
    redis::{Redis, Sentinel, section},
    relay::{Relay, slow},
    simulator::Simulator,
    skip::skipped,
    tls::Certificates,
    version::KubectlVersion,
    world::{AGENT, World},
};

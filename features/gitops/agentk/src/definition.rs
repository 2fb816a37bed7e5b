//! The feature: the services `gitops` and `manifests`, the rules for health, and the workers of projects.

use std::sync::Arc;

use agentk_core::{
    feature::{Feature, FeatureContext, FeatureDefinition, FeatureOptions, Guard},
    services::kube_client::Restrictions,
};
use clap::Args;
use proto::ServiceName;

use super::{Gitops, GitopsHandler, GitopsMetrics, LEASE, ManifestsHandler, check, cluster_client};

/// The feature, as agentk builds it.
pub const DEFINITION: FeatureDefinition = FeatureDefinition {
    services: &[ServiceName::GITOPS],
    writes: true,
    lease: Some(LEASE),
    flags: GitopsOptions::augment_args,
    is_enabled: |options| !options.flags::<GitopsOptions>().no_gitops,
    build,
    check: Some(check::check),
};

/// The flags of GitOps.
#[derive(Debug, Args)]
struct GitopsOptions {
    /// Do not apply manifests from Git
    ///
    /// kas sends them if the configuration of this agent has gitops.manifest_projects. The policy file limits what they may change
    /// (service gitops). See docs/gitops.md.
    #[arg(long, env = "AGENTK_NO_GITOPS", help_heading = "Cluster")]
    pub no_gitops: bool,
}

fn build(_: &FeatureOptions<'_>, context: &mut FeatureContext<'_>) -> anyhow::Result<Feature> {
    let metrics = GitopsMetrics::register(context.registry);
    let cluster = |context: &FeatureContext<'_>, restrictions: &Restrictions| {
        cluster_client(context.kubernetes.clone(), restrictions, metrics.clone())
    };
    let own = cluster(context, &Restrictions::default());
    let restricted = cluster(context, &context.restrictions);
    let leader = context.lead(own);
    let (gitops, tasks) = Gitops::new(restricted, leader, metrics, context.events.clone());
    GitopsMetrics::register_states(context.registry, &gitops);
    let health_rules = gitops.health_rules().clone();
    Ok(Feature::default()
        .with_handler(ServiceName::GITOPS, Guard::Handler, GitopsHandler(Arc::clone(&gitops)))
        .with_handler(ServiceName::MANIFESTS, Guard::Handler, ManifestsHandler(gitops))
        .with_section(move |update| {
            health_rules.set(&update.keys.graph.health_rules);
            Vec::new()
        })
        .with_work(tasks.run()))
}

//! The feature: the service `graph`, the section `graph`, and the health of the environments of the configuration.

use std::sync::Arc;

use agentk_core::feature::{Feature, FeatureContext, FeatureDefinition, FeatureOptions, Guard, SectionError};
use clap::Args;
use proto::ServiceName;

use super::{GraphHandler, GraphMetrics, GraphService, WatchedEnvironments, check};

/// The feature, as agentk builds it.
pub const DEFINITION: FeatureDefinition = FeatureDefinition {
    services: &[ServiceName::GRAPH],
    writes: false,
    lease: None,
    flags: GraphOptions::augment_args,
    is_enabled: |options| !options.flags::<GraphOptions>().no_graph,
    build,
    check: Some(check::check),
};

/// The flags of the graph.
#[derive(Debug, Args)]
struct GraphOptions {
    /// Do not show the graph of the cluster's objects
    ///
    /// With the service graph, callers see the objects that they may list, their relations and their health. Nothing is loaded while
    /// nobody looks. The policy file limits it (service graph). See docs/graph.md.
    #[arg(long, env = "AGENTK_NO_GRAPH", help_heading = "Cluster")]
    pub no_graph: bool,
}

fn build(_: &FeatureOptions<'_>, context: &mut FeatureContext<'_>) -> anyhow::Result<Feature> {
    let (kubernetes, restrictions) = (context.kubernetes.clone(), context.restrictions.clone());
    let graph = GraphService::new(kubernetes, restrictions, context.instance);
    GraphMetrics::register(context.registry, &graph);
    let (configured, error) = (Arc::clone(&graph), SectionError::default());
    let (worker, events, stopping) = (Arc::clone(&graph), context.events.clone(), context.stopping.clone());
    Ok(Feature::default()
        .with_handler(ServiceName::GRAPH, Guard::Handler, GraphHandler::new(graph))
        .with_section(move |update| {
            let keys = update.keys;
            error.set(keys.graph_error.as_ref(), "the graph does not use its configuration");
            configured.set_section(keys.graph.clone());
            let (environments, load) = (keys.environments.clone(), keys.environment_health);
            configured.set_environments(WatchedEnvironments { environments, load });
            Vec::new()
        })
        .with_work(async move {
            let work = async { tokio::join!(worker.run(), worker.watch_environments(&events)) };
            stopping.run_until_cancelled(work).await;
        }))
}

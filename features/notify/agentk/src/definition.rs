//! The feature: the service `notify`, the sections `notify` and `flux`, and the lanes of events.

use std::sync::Arc;

use agentk_core::feature::{Feature, FeatureContext, FeatureDefinition, FeatureOptions, Guard};
use clap::Args;
use proto::ServiceName;

use super::{EventSections, LEASE, Notify, NotifyHandler, NotifyMetrics, check};

/// The feature, as agentk builds it.
pub const DEFINITION: FeatureDefinition = FeatureDefinition {
    services: &[ServiceName::NOTIFY],
    writes: true,
    lease: Some(LEASE),
    flags: NotifyOptions::augment_args,
    is_enabled: |options| !options.flags::<NotifyOptions>().no_notify,
    build,
    check: Some(check::check),
};

/// The flags of project events.
#[derive(Debug, Args)]
struct NotifyOptions {
    /// Do nothing in the cluster when a Git project changes
    ///
    /// kas sends events if the configuration of this agent has notify or flux. The policy file limits what they may change (service
    /// notify), and lists the URLs of webhooks. See docs/project-events.md.
    #[arg(long, env = "AGENTK_NO_NOTIFY", help_heading = "Cluster")]
    pub no_notify: bool,
}

fn build(_: &FeatureOptions<'_>, context: &mut FeatureContext<'_>) -> anyhow::Result<Feature> {
    let metrics = NotifyMetrics::register(context.registry);
    let own = context.own_cluster(ServiceName::NOTIFY);
    let leader = context.lead(own);
    let cluster = context.restricted_cluster(ServiceName::NOTIFY);
    let policy = context.restrictions.policy.clone();
    let (notify, tasks) = Notify::new(cluster, leader, policy, metrics);
    Ok(Feature::default()
        .with_handler(ServiceName::NOTIFY, Guard::Handler, NotifyHandler(Arc::clone(&notify)))
        .with_section(move |update| {
            let sections =
                EventSections { notify: update.keys.notify.clone(), flux: update.keys.flux.clone() };
            let unreadable = update.keys.notify_error.clone();
            unreadable.into_iter().chain(notify.set_sections(sections, update.places)).collect()
        })
        .with_work(tasks.run()))
}

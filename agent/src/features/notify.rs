//! The feature: the service `notify`, the sections `notify` and `flux`, and the lanes of events.

use std::sync::Arc;

use proto::ServiceName;

use super::{Feature, FeatureContext, FeatureDefinition, Guard};
use crate::{
    cli::RunOptions,
    services::notify::{EventSections, LEASE, Notify, NotifyHandler, NotifyMetrics},
};

pub(crate) const DEFINITION: FeatureDefinition = FeatureDefinition {
    services: &[ServiceName::NOTIFY],
    writes: true,
    lease: Some(LEASE),
    is_enabled: |options| !options.no_notify,
    build,
    check: None,
};

fn build(_: &RunOptions, context: &mut FeatureContext<'_>) -> anyhow::Result<Feature> {
    let metrics = NotifyMetrics::register(context.registry);
    let own = context.own_cluster(ServiceName::NOTIFY);
    let leader = context.lead(LEASE, own);
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

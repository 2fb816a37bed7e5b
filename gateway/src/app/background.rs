//! The tasks of a replica that run from time to time.

use std::{env, sync::Arc, time::SystemTime};

use cores::{Cores, TaskGroup};
use futures_util::{FutureExt as _, future::BoxFuture};
use kas_gitlab::{ReceptiveAgentsPoller, SwitchMonitor, UsageReporter};
use tokio::{sync::watch, task::spawn_blocking, time::sleep};

use super::App;
use access::kill_switch::KillSwitch;

impl App {
    /// Spawns the tasks that run from time to time, until the group drains.
    pub(super) fn spawn_periodic(&self, background: &TaskGroup) {
        let spawn = |task: BoxFuture<'static, ()>| {
            let until = background.draining.clone();
            background.spawn(async move {
                until.run_until_cancelled(task).await;
            });
        };
        spawn(remove_left_behind().boxed());
        let (budget, metrics) =
            (Arc::clone(&self.callers.connections.budget), self.callers.observers.metrics.clone());
        spawn(async move { budget.run(&metrics).await }.boxed());
        let callers = Arc::clone(&self.callers);
        spawn(async move { callers.connections.idle.run(&callers.observers.metrics).await }.boxed());
        let switch = Arc::clone(&self.callers.kill_switch);
        spawn(async move { switch.run().await }.boxed());
        if let Some(audit) = self.callers.observers.audit.get().cloned() {
            spawn(async move { audit.run().await }.boxed());
        }
        if let Some(web) = self.web.clone() {
            spawn(async move { web.run().await }.boxed());
        }
        let agents = Arc::clone(&self.agents);
        spawn(async move { agents.recheck_clusters().await }.boxed());
        let issuers = self.issuers.clone();
        spawn(async move { issuers.run().await }.boxed());
        let (configuration, pushes) = (self.agents.configuration.clone(), self.agents.store.pushes());
        spawn(async move { configuration.follow_pushes(pushes).await }.boxed());
        self.features.background_tasks(&self.agents).into_iter().for_each(spawn);
        if let Some(callers) = self.gitlab_callers.clone() {
            spawn(async move { callers.run().await }.boxed());
        }
        if let Some(client) = self.gitlab.clone() {
            let (usage, period) = (self.usage.clone(), self.config.observability.usage_reporting_period);
            let reporter = UsageReporter { client: client.clone(), usage, period };
            if !period.is_zero() {
                spawn(async move { reporter.run().await }.boxed());
            }
            let switch = Arc::clone(&self.callers.kill_switch);
            spawn(follow_gitlab_switch(client.switched_off(), switch).boxed());
            spawn(async move { SwitchMonitor { client }.run().await }.boxed());
        }
    }

    /// Spawns the task that dials agents, and the one that reads those of GitLab, if kas has to.
    pub(super) fn spawn_receptive_agents(&self, background: &TaskGroup, cores: &Cores) {
        let interval = self.config.agent.receptive_agent.poll_interval;
        let gitlab = self.gitlab.clone().filter(|_| !interval.is_zero());
        let (poller, others) = gitlab.map(|client| ReceptiveAgentsPoller::new(client, interval)).unzip();
        background.spawn(self.receptive_agents(cores.clone(), others).run());
        if let Some(poller) = poller {
            let until = background.draining.clone();
            background.spawn(async move {
                until.run_until_cancelled(poller.run()).await;
            });
        }
    }
}

/// Removes the temporary directories of a kas that was killed, once. One that was killed just before is young enough to be in use.
async fn remove_left_behind() {
    const PREFIXES: [&str; 2] = [git::WORK_DIRECTORY_PREFIX, render::WORK_DIRECTORY_PREFIX];
    sleep(2 * files::MIN_LEFT_BEHIND_AGE).await;
    let parent = env::temp_dir();
    let removed =
        spawn_blocking(move || files::remove_left_behind(&parent, &PREFIXES, SystemTime::now())).await;
    match removed {
        Ok(Ok(0)) => {}
        Ok(Ok(removed)) => tracing::info!(removed, "temporary directories of a killed kas were removed"),
        Ok(Err(error)) => tracing::debug!(%error, "the temporary directory is not readable"),
        Err(error) => {
            tracing::error!(%error, "the removal of temporary directories has panicked; this is a defect")
        }
    }
}

/// Disables everything while GitLab has switched kas off.
async fn follow_gitlab_switch(mut off: watch::Receiver<bool>, switch: Arc<KillSwitch>) {
    loop {
        let is_off = *off.borrow_and_update();
        switch.set_external(is_off.then(|| "GitLab has switched kas off".to_owned()));
        if off.changed().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use access::{Identities, Identity};

    use super::*;

    #[tokio::test]
    async fn everything_is_disabled_while_gitlab_has_switched_kas_off() {
        let (off, switch) =
            (watch::Sender::new(true), Arc::new(KillSwitch::new(Identities::new(Identity::default()))));
        let mut following = Box::pin(follow_gitlab_switch(off.subscribe(), Arc::clone(&switch)));
        assert!(following.as_mut().now_or_never().is_none());
        assert_eq!(switch.lines(), ["everything: GitLab has switched kas off"]);
        off.send_replace(false);
        assert!(following.as_mut().now_or_never().is_none());
        assert!(switch.lines().is_empty());
    }
}

//! Sequences that have broken a rule once, by name.

use fake_cluster::Death;

use super::{
    Loss::*,
    Operation::*,
    Others::*,
    Pass::{Clean, Fail, Kill, Race},
    Setting::*,
    operations::{Annotation, Approval, Step, Things},
    run, runtime,
    universe::{Foreign, Thing::*, *},
};

/// The requests of a pass at which a process dies.
const REQUESTS: std::ops::Range<usize> = 0..80;

/// Checks that a sequence breaks no rule.
fn check(steps: &[Step]) {
    let (violations, log) = run(&runtime(), steps, true);
    assert!(violations.is_empty(), "{violations:?}\n{}", log.join("\n"));
}

/// Returns all objects of the first project.
fn all() -> Things {
    without(&[])
}

fn without(gone: &[Thing]) -> Things {
    of(&FIRST.into_iter().filter(|thing| !gone.contains(thing)).collect::<Vec<_>>())
}

fn of(things: &[Thing]) -> Things {
    Things(things.iter().map(|thing| (*thing, 1)).collect())
}

/// Returns an operation that a pass follows.
fn then_pass(operation: super::Operation) -> Step {
    Step(operation, Some((0, Clean)))
}

/// Returns the beginning of most sequences: all objects are there, and healthy.
fn begin() -> [Step; 2] {
    [Step(Controllers(true), None), then_pass(Commit(0, all()))]
}

fn after_begin(steps: &[Step]) {
    check(&[&begin(), steps].concat());
}

#[test]
fn new_objects_do_not_dilute_a_held_deletion() {
    let first = [A, B, C];
    check(&[
        Step(Controllers(true), None),
        Step(Set(0, MaxPrune(0)), None),
        then_pass(Commit(0, of(&first))),
        then_pass(Commit(0, without(&first))),
        then_pass(Nothing),
        then_pass(Restart(0)),
    ]);
}

#[test]
fn namespace_with_a_copy_of_an_object_stays() {
    after_begin(&[Step(Others(Copy(Inner)), None), then_pass(Commit(0, without(&[Shop, Inner, Db])))]);
}

#[test]
fn kinds_and_names_of_kubernetes_say_nothing() {
    for foreign in [Foreign::Lease, Foreign::Token] {
        after_begin(&[
            Step(Set(0, PruneIrreplaceable(true)), None),
            Step(Others(Create(foreign)), None),
            then_pass(Commit(0, without(&[Shop, Inner, Db]))),
        ]);
    }
}

#[test]
fn annotations_of_helm_and_argo_cd_are_known() {
    for annotation in [Annotation::Keep, Annotation::Confirm] {
        after_begin(&[Step(Others(Annotate(A, annotation)), None), then_pass(Commit(0, without(&[A])))]);
    }
}

#[test]
fn object_without_its_label_stays_with_its_project() {
    after_begin(&[then_pass(Others(RemoveLabel(A)))]);
    after_begin(&[Step(Others(RemoveLabel(A)), None), then_pass(Commit(0, without(&[A])))]);
}

#[test]
fn lost_inventory_is_noticed() {
    for loss in [Parent, Members, Both, CopyParent, CopyBoth] {
        after_begin(&[Step(Others(Edit(A)), None), then_pass(Lose(0, loss))]);
    }
}

#[test]
fn approved_deletion_goes_on_wherever_it_was_interrupted() {
    for at in REQUESTS {
        for death in [Death::Before, Death::After] {
            after_begin(&[
                then_pass(Commit(0, of(&[A]))),
                Step(Approve(0, Approval::Current), Some((0, Kill(at, death)))),
                then_pass(Nothing),
            ]);
        }
    }
}

#[test]
fn object_that_is_being_deleted_is_not_synced() {
    check(&[
        then_pass(Commit(0, of(&[A, B]))),
        Step(Others(AddFinalizer(A)), None),
        then_pass(Others(Delete(A))),
    ]);
}

#[test]
fn object_that_the_project_may_not_have_any_more_stays() {
    check(&[
        Step(Controllers(true), None),
        then_pass(Commit(0, of(&[A, B, C]))),
        Step(Set(0, Namespaces(Some(&[TEAM]))), None),
        then_pass(Commit(0, of(&[A, B]))),
    ]);
}

#[test]
fn another_default_namespace_deletes_no_volume() {
    check(&[
        Step(Controllers(true), None),
        then_pass(Commit(0, of(&[A, Data]))),
        then_pass(Set(0, DefaultNamespace(TEAM))),
    ]);
}

#[test]
fn small_deletions_are_one_within_an_hour() {
    after_begin(&[
        then_pass(Commit(0, without(&[A, B, C]))),
        Step(Sleep(5), None),
        then_pass(Commit(0, without(&[A, B, C, D, Late, Inner]))),
    ]);
}

#[test]
fn recovery_ends_although_the_parent_is_older() {
    after_begin(&[
        then_pass(Commit(0, without(&[A]))),
        then_pass(Commit(0, without(&[A, B]))),
        Step(Lose(0, OldParent(2)), None),
    ]);
}

#[test]
fn recovery_that_was_interrupted_is_not_complete() {
    for at in REQUESTS {
        for death in [Death::Before, Death::After, Death::Late] {
            for loss in [Parent, Both] {
                after_begin(&[
                    Step(Lose(0, loss), None),
                    Step(Recover(0, Kill(at, death)), Some((0, Clean))),
                ]);
            }
        }
    }
}

#[test]
fn copy_of_an_empty_inventory_is_used() {
    after_begin(&[
        then_pass(Commit(0, of(&[]))),
        then_pass(Approve(0, Approval::Current)),
        Step(Lose(0, CopyBoth), None),
        then_pass(Restart(0)),
        then_pass(Nothing),
    ]);
}

#[test]
fn first_record_of_a_former_leader_replaces_no_other() {
    for at in REQUESTS {
        check(&[
            Step(Controllers(true), None),
            Step(Commit(0, of(&[A, B, C])), Some((0, Kill(at, Death::Late)))),
            then_pass(Nothing),
            then_pass(Commit(0, of(&[A, B]))),
            then_pass(Deliver),
        ]);
    }
}

#[test]
fn annotation_that_comes_before_the_deletion_counts() {
    for at in REQUESTS {
        for annotation in [Annotation::Keep, Annotation::Confirm] {
            after_begin(&[Step(Commit(0, without(&[D])), Some((0, Race(at, Annotate(D, annotation)))))]);
        }
    }
}

#[test]
fn lost_inventory_is_noticed_by_objects_of_other_kinds_than_those_in_git() {
    check(&[
        then_pass(Commit(0, of(&[A, B, Data]))),
        Step(Commit(0, of(&[Shop])), None),
        Step(Lose(0, Both), None),
        then_pass(Restart(0)),
    ]);
}

#[test]
fn what_cannot_be_listed_is_not_absent() {
    for status in [403, 429, 500] {
        for at in REQUESTS {
            for has_effect in [false, true] {
                after_begin(&[
                    Step(Lose(0, Both), None),
                    Step(Restart(0), Some((0, Fail(at, 60, status, has_effect)))),
                    then_pass(Nothing),
                ]);
            }
        }
    }
}

//! Conformance tests of the bindings of worker ids; part of `conformance`.

use faultline_proto::id::WorkerId;

use super::{BindingQuota, Store};

const ROOM: BindingQuota = BindingQuota { max: 100, stale_before: 0 };

pub(super) async fn a_worker_id_stays_bound_to_its_first_credential(store: &dyn Store) {
    let (id, other, ours, theirs) = (WorkerId::new(), WorkerId::new(), [1; 16], [2; 16]);
    let introduce = async |id, to, at| store.introduce(id, to, at, ROOM).await.unwrap().unwrap();
    assert_eq!(introduce(id, ours, 1000).await, ours);
    assert_eq!(introduce(id, theirs, 2000).await, ours, "it is taken");
    assert_eq!(introduce(other, theirs, 1000).await, theirs, "another id is free");
    assert_eq!(introduce(id, ours, 1000).await, ours, "the first comes back");

    // The refused attempt did not keep it: it was last seen at 1000.
    store.keep_introduced(vec![other], 5000, 1000).await.unwrap();
    assert_eq!(introduce(id, theirs, 1000).await, ours, "not old enough");
    store.keep_introduced(vec![other], 5000, 1001).await.unwrap();
    assert_eq!(introduce(id, theirs, 6000).await, theirs, "nobody has known it for long");
    store.keep_introduced(vec![], 6000, 5000).await.unwrap();
    assert_eq!(introduce(other, ours, 6000).await, theirs, "one that was kept stays bound");
}

pub(super) async fn of_two_credentials_that_introduce_one_id_one_wins(store: &dyn Store) {
    for _ in 0..8 {
        let id = WorkerId::new();
        let both = [[1; 16], [2; 16]].map(|to| store.introduce(id, to, 1000, ROOM));
        let won = futures::future::try_join_all(both).await.unwrap();
        assert_eq!(won[0], won[1]);
    }
}

pub(super) async fn credential_binds_a_limited_number_of_worker_ids(store: &dyn Store) {
    let (ours, theirs, quota) = ([1; 16], [2; 16], BindingQuota { max: 3, stale_before: 1000 });
    let introduce = async |id, to, at| store.introduce(id, to, at, quota).await.unwrap();
    let bound: Vec<_> = (0..3).map(|_| WorkerId::new()).collect();
    for (id, at) in bound.iter().zip([1000, 2000, 3000]) {
        assert_eq!(introduce(*id, ours, at).await, Some(ours));
    }
    let late = WorkerId::new();
    assert_eq!(introduce(late, ours, 4000).await, None, "three are bound and none is stale");
    assert_eq!(introduce(bound[1], ours, 4000).await, Some(ours), "a known id comes back");
    assert_eq!(introduce(bound[1], theirs, 4000).await, Some(ours), "and stays bound");
    assert_eq!(introduce(WorkerId::new(), theirs, 4000).await, Some(theirs), "another's quota");

    let later = BindingQuota { stale_before: 1001, ..quota };
    let introduce = async |id, to| store.introduce(id, to, 5000, later).await.unwrap();
    assert_eq!(introduce(late, ours).await, Some(ours), "the stale id gives way");
    assert_eq!(introduce(WorkerId::new(), ours).await, None);
    assert_eq!(introduce(bound[0], theirs).await, Some(theirs), "it is free again");
}

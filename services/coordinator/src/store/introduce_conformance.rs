//! The bindings of worker ids, as every store must keep them: part of `conformance`.

use faultline_proto::id::WorkerId;

use super::Store;

pub(super) async fn a_worker_id_stays_bound_to_its_first_credential(store: &dyn Store) {
    let (id, other, ours, theirs) = (WorkerId::new(), WorkerId::new(), [1; 16], [2; 16]);
    let introduce = async |id, to, at| store.introduce(id, to, at).await.unwrap();
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
        let both = [[1; 16], [2; 16]].map(|to| store.introduce(id, to, 1000));
        let won = futures::future::try_join_all(both).await.unwrap();
        assert_eq!(won[0], won[1]);
    }
}

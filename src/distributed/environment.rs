//! Which process this is among all: what launchers say in the environment.

use crate::error::{Error, Result};
use std::time::Duration;

/// How long a rank waits for the others, unless told otherwise.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);

/// Where ranks meet, and which of them this process is.
///
/// ```
/// use capgrad::Rendezvous;
/// use std::time::Duration;
/// let second = Rendezvous::new(1, 4, "10.0.0.1:29500").with_timeout(Duration::from_secs(10));
/// assert_eq!((second.rank, second.world_size), (1, 4));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Rendezvous {
    /// This process, from 0.
    pub rank: usize,
    /// How many processes there are.
    pub world_size: usize,
    /// Which of the processes on its machine this is, where the launcher says; the usual choice of a GPU.
    pub local_rank: usize,
    /// `host:port` of rank 0, which listens there.
    pub address: String,
    /// How long this rank waits for others: at the meeting, and in every collective.
    pub timeout: Duration,
}

impl Rendezvous {
    /// Rank `rank` of `world_size`, which meet at `address`, `host:port` of rank 0; with a time-out of 60
    /// seconds.
    pub fn new(rank: usize, world_size: usize, address: impl Into<String>) -> Rendezvous {
        let address = address.into();
        Rendezvous { rank, world_size, local_rank: rank, address, timeout: TIMEOUT }
    }

    /// The same, with another time-out.
    pub fn with_timeout(self, timeout: Duration) -> Rendezvous {
        Rendezvous { timeout, ..self }
    }

    /// What the launcher has put in the environment:
    ///
    /// | launcher | rank | world size | local rank |
    /// |---|---|---|---|
    /// | `torchrun`, or by hand | `RANK` | `WORLD_SIZE` | `LOCAL_RANK` |
    /// | `mpirun` of Open MPI | `OMPI_COMM_WORLD_RANK` | `OMPI_COMM_WORLD_SIZE` | `OMPI_COMM_WORLD_LOCAL_RANK` |
    /// | `mpirun` of MPICH, Intel MPI | `PMI_RANK` | `PMI_SIZE` | `MPI_LOCALRANKID` |
    /// | `srun` | `SLURM_PROCID` | `SLURM_NTASKS` | `SLURM_LOCALID` |
    ///
    /// The first line that is there counts. Ranks meet at `MASTER_ADDR` and `MASTER_PORT`; under
    /// `torchrun`, whose own store listens at that port, at the next one. Where they are not set, ranks of
    /// one machine meet at 127.0.0.1, `srun`'s at the node that it was started from
    /// (`SLURM_LAUNCH_NODE_IPADDR`), at port 29500. `CAPGRAD_TIMEOUT` sets the time-out, in seconds.
    ///
    /// # Errors
    /// [`Error::Communication`] where no launcher has said anything, or what it said is no number, a rank
    /// outside the world, or no place to meet.
    pub fn from_env() -> Result<Rendezvous> {
        Rendezvous::from_lookup(|name| std::env::var(name).ok())
    }

    /// [`Rendezvous::from_env`], with the environment that `lookup` gives.
    pub(super) fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Rendezvous> {
        let refused = |reason: String| Error::communication("rendezvous", 0, 1, reason);
        let number = |name: &str| -> Result<Option<usize>> {
            lookup(name)
                .map(|text| {
                    text.trim().parse().map_err(|_| {
                        refused(format!("{name} = {text:?} in the environment is no number"))
                    })
                })
                .transpose()
        };
        let launchers = [
            ("torchrun", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]),
            (
                "Open MPI",
                [
                    "OMPI_COMM_WORLD_RANK",
                    "OMPI_COMM_WORLD_SIZE",
                    "OMPI_COMM_WORLD_LOCAL_RANK",
                    "OMPI_COMM_WORLD_LOCAL_SIZE",
                ],
            ),
            ("MPI", ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"]),
            (
                "srun",
                ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"],
            ),
        ];
        let said = launchers.iter().find(|(_, names)| lookup(names[0]).is_some());
        let Some((launcher, [rank, world, local, beside])) = said else {
            return Err(refused(
                "no launcher has set RANK and WORLD_SIZE (or OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID); \
                 start the program with torchrun, mpirun or srun, or set RANK, WORLD_SIZE, MASTER_ADDR and \
                 MASTER_PORT"
                    .into(),
            ));
        };
        let rank_name = rank;
        let rank = number(rank)?.unwrap_or(0);
        let world_size = number(world)?.ok_or_else(|| {
            refused(format!("{rank_name} is set in the environment, {world} is not"))
        })?;
        if rank >= world_size {
            return Err(refused(format!(
                "{rank_name} = {rank} in the environment, with {world} = {world_size}; ranks are from 0 on"
            )));
        }
        // Where that is not said, one process a machine is as likely as all on one.
        let local_rank = number(local).ok().flatten().unwrap_or(rank);
        let beside = lookup(beside).and_then(|text| text.trim().parse::<usize>().ok());
        let host = lookup("MASTER_ADDR")
            .or_else(|| lookup("SLURM_LAUNCH_NODE_IPADDR").filter(|_| *launcher == "srun"))
            .or_else(|| {
                (world_size == 1 || beside == Some(world_size)).then(|| "127.0.0.1".to_owned())
            })
            .ok_or_else(|| {
                refused(
                    "the ranks are on several machines: set MASTER_ADDR to that of rank 0".into(),
                )
            })?;
        let port = number("MASTER_PORT")?.unwrap_or(29500);
        // Its agent listens at the port itself.
        let port = port + usize::from(lookup("TORCHELASTIC_RUN_ID").is_some());
        if port > usize::from(u16::MAX) || port == 0 {
            return Err(refused(format!(
                "MASTER_PORT leads to port {port}, which there cannot be"
            )));
        }
        let timeout = number("CAPGRAD_TIMEOUT")?
            .map_or(TIMEOUT, |seconds| Duration::from_secs(seconds.max(1) as u64));
        // An address of IPv6 has colons of its own.
        let host =
            if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host };
        let address = format!("{host}:{port}");
        Ok(Rendezvous { rank, world_size, local_rank, address, timeout })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(pairs: &[(&str, &str)]) -> Result<Rendezvous> {
        Rendezvous::from_lookup(|name| {
            pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.to_owned())
        })
    }

    fn found(pairs: &[(&str, &str)]) -> (usize, usize, usize, String) {
        let it = from(pairs).unwrap();
        (it.rank, it.world_size, it.local_rank, it.address)
    }

    #[test]
    fn launchers_are_understood() {
        let torchrun = [
            ("RANK", "3"),
            ("WORLD_SIZE", "8"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "node0"),
            ("MASTER_PORT", "29400"),
            ("TORCHELASTIC_RUN_ID", "none"),
        ];
        assert_eq!(found(&torchrun), (3, 8, 1, "node0:29401".into()));
        assert_eq!(found(&torchrun[..5]), (3, 8, 1, "node0:29400".into()));
        let open_mpi = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
        assert_eq!(found(&open_mpi), (1, 2, 1, "127.0.0.1:29500".into()));
        let mpich = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MASTER_ADDR", "::1")];
        assert_eq!(found(&mpich), (0, 2, 0, "[::1]:29500".into()));
        let slurm = [
            ("SLURM_PROCID", "5"),
            ("SLURM_NTASKS", "16"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_LAUNCH_NODE_IPADDR", "10.1.1.1"),
            ("MASTER_PORT", "7000"),
        ];
        assert_eq!(found(&slurm), (5, 16, 1, "10.1.1.1:7000".into()));
        let slow = from(&[("RANK", "0"), ("WORLD_SIZE", "1"), ("CAPGRAD_TIMEOUT", "7")]).unwrap();
        assert_eq!(slow.timeout, Duration::from_secs(7));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let cases: [(&[(&str, &str)], &str); 6] = [
            (&[], "torchrun"),
            (&[("RANK", "x"), ("WORLD_SIZE", "2")], "RANK = \"x\""),
            (&[("RANK", "1")], "WORLD_SIZE is not"),
            (&[("RANK", "2"), ("WORLD_SIZE", "2")], "ranks are from 0"),
            (&[("RANK", "1"), ("WORLD_SIZE", "2")], "MASTER_ADDR"),
            (&[("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_PORT", "70000")], "70000"),
        ];
        for (pairs, part) in cases {
            let text = from(pairs).unwrap_err().to_string();
            assert!(text.contains(part), "{text}");
        }
    }
}

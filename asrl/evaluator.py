"""This module is the only place that runs evaluations inside a training run, on every rank."""

from collections.abc import Callable, Mapping
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from tqdm import tqdm

from asrl.data.dataset import SpeechDataset, make_loader
from asrl.data.sampler import plain_batches
from asrl.evaluate import Decoded, Transcription, summarise, transcribe, write_transcriptions
from asrl.models.speech_llm import SpeechLLM
from asrl.rollout.drafted import generate
from asrl.rollout.settings import SamplingSettings
from asrl.types import SpeechBatch, on_device


class Evaluator:
    """Transcribes held-out sets with the model as it is. Never touches the global random state.

    Args:
        model: The policy itself, not its distributed wrapper.
        datasets: Held-out sets by name (``dev``, ``test``).
        settings: How to decode, by name (``greedy``, ``sampled``).
        utterances_per_batch: In one forward of one rank.
        num_workers: Loader processes.
        accelerator: For the device and for gathering.
        is_any_rank_busy: Of the backend; see ``drafted.generate``.
        run_dir: Transcriptions go to its folder ``evaluations``.
    """

    def __init__(
        self,
        model: SpeechLLM,
        datasets: Mapping[str, SpeechDataset],
        settings: Mapping[str, SamplingSettings],
        *,
        utterances_per_batch: int,
        num_workers: int,
        accelerator: Accelerator,
        is_any_rank_busy: Callable[[bool], bool],
        run_dir: Path,
    ) -> None:
        self.model = model
        self.datasets = datasets
        self.settings = settings
        self.utterances_per_batch = utterances_per_batch
        self.num_workers = num_workers
        self.accelerator = accelerator
        self.is_any_rank_busy = is_any_rank_busy
        self.run_dir = run_dir

    def run(self, split: str, mode: str, *, step: int) -> dict[str, float]:
        """Transcribe one set in one way and write the transcriptions; return ``<split>_<mode>/<rate>``."""
        transcriptions = self.transcribe(split, mode)
        if self.accelerator.is_main_process:
            write_transcriptions(self.path(split, mode, step), transcriptions)
        return {f"{split}_{mode}/{name}": value for name, value in summarise(transcriptions).items()}

    def run_once(self, split: str, mode: str, *, step: int) -> None:
        """Transcribe one set in one way, unless the transcriptions are there already."""
        is_done = broadcast_object_list([self.path(split, mode, step).exists()])[0]
        if not is_done:
            self.run(split, mode, step=step)

    def path(self, split: str, mode: str, step: int) -> Path:
        """File with the transcriptions of one evaluation."""
        return self.run_dir / "evaluations" / f"{split}-{mode}-{step:08d}.jsonl"

    def transcribe(self, split: str, mode: str) -> list[Transcription]:
        """Transcribe one set, shared among the ranks; each gets all transcriptions in manifest order."""
        dataset, settings = self.datasets[split], self.settings[mode]

        def decode(batch: SpeechBatch) -> Decoded:
            completions = generate(
                self.model,
                on_device(batch, self.accelerator.device),
                settings,
                is_any_rank_busy=self.is_any_rank_busy,
            )
            return Decoded(self.model.decode(completions), (~completions.is_finished).tolist())

        batches = plain_batches(
            len(dataset),
            self.utterances_per_batch,
            world_size=self.accelerator.num_processes,
            rank=self.accelerator.process_index,
        )
        loader = make_loader(dataset, batches, num_workers=self.num_workers)
        is_shown = self.accelerator.is_main_process
        progress = tqdm(loader, total=len(batches), desc=f"{split} {mode}", leave=False, disable=not is_shown)
        # Ranks that would be short of a batch repeat an utterance.
        places = {
            transcription.place: transcription
            for transcription in gather_object(transcribe(progress, decode))
        }
        return [places[place] for place in sorted(places)]

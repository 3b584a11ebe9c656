"""Sampling with vLLM in the trainer's own process. The only vLLM import."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from typing import Any

from tepo_lab.errors import MachineError, ResourceError
from tepo_lab.rollout.engine import Finished, Prompts, Response, Sampling, ignore_response
from tepo_lab.rollout.noise import prompt_seed

#: Set before vLLM is imported: one process, so that weights are handed over as tensors; no usage statistics.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "DO_NOT_TRACK": "1",
}

#: vLLM's messages at its start when a GPU has too little memory, or when others freed some while it measured.
NO_MEMORY = (
    "is less than desired GPU memory utilization",
    "No available memory for the cache blocks",
    "Error in memory profiling",
)

#: Key/value cache on a CPU, in bytes.
CPU_CACHE_BYTES = 256 * 2**20


class VllmEngine:
    """vLLM over the same model as the trainer's, colocated: it sleeps while the trainer learns.

    Args: `model` the trainer's transformers model, whose weights `sync_weights` hands over; `checkpoint` the folder or
    hub name vLLM reads the architecture from, of `revision`; `dtype` it computes in; `max_tokens` prompt and response
    together; `memory_share` of a GPU that vLLM may plan with while it is awake; `has_peers` whether other processes of
    torch's process group have an engine each, on GPUs of their own.
    Raises `ResourceError` when vLLM is not installed, `MachineError` when the GPU has not the memory for it now.
    """

    def __init__(
        self,
        model: Any,
        *,
        checkpoint: str,
        dtype: str,
        end_ids: Sequence[int],
        max_tokens: int,
        sequences_per_batch: int,
        revision: str | None = None,
        trust_remote_code: bool = False,
        memory_share: float = 0.6,
        has_peers: bool = False,
    ) -> None:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        try:
            from vllm import LLM
        except ImportError as error:
            raise ResourceError(
                f"rollout.engine=vllm: vLLM cannot be imported ({error}); install it with pip install "
                "'tepo-lab[vllm]', or set rollout.engine=transformers."
            ) from None
        self.model = model
        self.end_ids = sorted(set(end_ids))
        self.on_gpu = model.device.type == "cuda"
        placed: dict[str, Any] = (
            {"enable_sleep_mode": True, "gpu_memory_utilization": memory_share}
            if self.on_gpu
            else {"enforce_eager": True, "kv_cache_memory_bytes": CPU_CACHE_BYTES}
        )
        if has_peers:
            # The engine takes its place in the process group that is there; alone it makes one for itself.
            placed["distributed_executor_backend"] = "external_launcher"
        try:
            self.llm = LLM(
                model=checkpoint,
                revision=revision,
                trust_remote_code=trust_remote_code,
                dtype=dtype,
                max_model_len=max_tokens,
                max_num_seqs=sequences_per_batch,
                # The log-probabilities of the distribution sampled from: what the trainer's own are compared with.
                logprobs_mode="processed_logprobs",
                seed=0,
                **placed,
            )
        except (ValueError, AssertionError) as error:
            if not any(words in str(error) for words in NO_MEMORY):
                raise
            raise MachineError(
                f"vLLM cannot start ({str(error).partition('. ')[0]}): free the GPU's memory, or change "
                "resources.sampler_memory_share."
            ) from error
        self.is_current, self.is_asleep = False, False

    def generate(
        self, prompts: Prompts, *, samples: int, sampling: Sampling, finished: Finished = ignore_response
    ) -> list[list[Response]]:
        """`samples` responses to each prompt, in order, with the log-probability of each token when sampled."""
        self._take_weights()
        for prompt, ids in enumerate(prompts):
            seed = prompt_seed(sampling.seed, sampling.first_prompt + prompt)
            for sample in range(samples):
                self._ask(prompt * samples + sample, ids, sampling, seed + sample)
        responses: dict[int, Response] = {}
        for place, response in self._answers():
            responses[place] = response
            finished(*divmod(place, samples), response)
        return [[responses[prompt * samples + sample] for sample in range(samples)] for prompt in range(len(prompts))]

    def _ask(self, place: int, prompt: Sequence[int], sampling: Sampling, seed: int) -> None:
        """Queue one response to `prompt`, known by its place."""
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        settings = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=0,
            max_tokens=sampling.max_new_tokens,
            stop_token_ids=self.end_ids,
            ignore_eos=True,
            detokenize=False,
            logprobs=0,
            seed=seed,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self.llm.llm_engine.add_request(str(place), tokens_input(list(prompt)), settings)

    def _answers(self) -> Iterator[tuple[int, Response]]:
        """What was asked for, by its place, as it is finished."""
        engine = self.llm.llm_engine
        while engine.has_unfinished_requests():
            for answer in engine.step():
                if answer.finished:
                    yield int(answer.request_id), _response(answer.outputs[0])

    def rest(self) -> None:
        """On a GPU, sleep: level 2 lets go of the weights too, which will have changed when it wakes."""
        if self.on_gpu and not self.is_asleep:
            self.llm.sleep(level=2)
            self.is_current, self.is_asleep = False, True

    def sync_weights(self) -> None:
        """The next `generate` takes the trainer's weights over."""
        self.is_current = False

    def _take_weights(self) -> None:
        """Hand the trainer's weights over, and forget prefixes cached under the old ones."""
        if self.is_current:
            return
        if self.is_asleep:
            self.llm.wake_up(tags=["weights"])
        self.llm.collective_rpc(
            "reload_weights", kwargs={"weights_iterator": self._weights(), "is_checkpoint_format": True}
        )
        if self.is_asleep:
            self.llm.wake_up(tags=["kv_cache"])
            self.is_asleep = False
        self.llm.reset_prefix_cache()
        self.is_current = True

    def close(self) -> None:
        """Give back vLLM's memory, so that the process may have another engine."""
        # Until its shutdown the engine core freezes the objects of its start, which the garbage collector then skips.
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        gc.collect()

    def _weights(self) -> Iterator[tuple[str, Any]]:
        for name, tensor in self.model.state_dict().items():
            # A sharded model's weights are put together one by one, by all its processes at once.
            yield name, (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach()


def _response(output: Any) -> Response:
    ids = tuple(output.token_ids)
    log_probs = tuple(float(step[token].logprob) for step, token in zip(output.logprobs, ids, strict=True))
    return Response(ids, truncated=output.finish_reason == "length", log_probs=log_probs)

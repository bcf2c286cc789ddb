"""Client of the job routes: uploads scenes, polls jobs and downloads results. It does not import vLLM."""

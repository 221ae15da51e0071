"""The ways in which agents of the frameworks ask for an answer, for `test_training.py`."""

from tests.frameworks.completeness import Way

WAYS = {
    "frameworks": {
        "pydantic_ai_default": Way("pydantic-ai-slim", "`output_type=Order`"),
        "pydantic_ai_native": Way("pydantic-ai-slim", "`NativeOutput(Order)`"),
        "pydantic_ai_prompted": Way("pydantic-ai-slim", "`PromptedOutput(Order)`"),
        "smolagents_tools": Way("smolagents", "`ToolCallingAgent`"),
        "smolagents_code": Way("smolagents", "`CodeAgent`"),
        "smolagents_structured_code": Way(
            "smolagents", "`CodeAgent(use_structured_outputs_internally=True)`"
        ),
        "openai_agents_output_type": Way("openai-agents", "`output_type=Order`"),
        "langchain_json_schema": Way("langchain", "`with_structured_output(Order)`"),
        "langchain_function_calling": Way(
            "langchain", '`with_structured_output(Order, method="function_calling")`'
        ),
        "langchain_create_agent": Way("langchain", "`create_agent(response_format=Order)`"),
        "langgraph_node": Way("langgraph", "a node that calls the model"),
        "openai_parse": Way("openai", "`parse(response_format=Order)`"),
        "autogen_output_type": Way("autogen-agentchat", "`output_content_type=Order`"),
    },
    "openai2": {
        "instructor_default": Way("instructor", "`from_openai(…).create(response_model=Order)`"),
        "litellm_response_format": Way("litellm", "`completion(response_format=Order)`"),
        "crewai_response_format": Way("crewai", "`kickoff(response_format=Order)`"),
        "llama_index_structured_llm": Way("llama-index-core", "`as_structured_llm(Order)`"),
    },
    "otel144": {
        "agno_output_schema": Way("agno", "`output_schema=Order`"),
        "dspy_json_adapter": Way("dspy", "`JSONAdapter()`, an output of type `Order`"),
        "google_adk_output_schema": Way("google-adk", "`output_schema=Order`"),
        "haystack_response_format": Way("haystack-ai", '`{"response_format": Order}`'),
        "semantic_kernel_response_format": Way("semantic-kernel", "`response_format=Order`"),
        "strands_structured_output": Way("strands-agents", "`structured_output_model=Order`"),
    },
}
"""The ways of each environment, by the functions of the agents."""

"""Networks: layers, the policy of five experts, critics, the action distribution."""

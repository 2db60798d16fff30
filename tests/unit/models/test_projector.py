import torch

from asrl.models.projector import Projector


def test_two_frames_are_joined_in_order_and_an_odd_last_one_is_dropped():
    projector = Projector(encoder_size=2, decoder_size=2)
    with torch.no_grad():
        projector.linear1.weight.copy_(torch.tensor([[1.0, 10.0, 100.0, 1000.0], [-1.0, 0.0, 0.0, 0.0]]))
        projector.linear1.bias.zero_()
        projector.linear2.weight.copy_(torch.eye(2))
        projector.linear2.bias.copy_(torch.tensor([0.5, 0.25]))
    hidden = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [-5.0, 6.0], [7.0, 8.0], [9.0, 9.0]]])
    # 1 + 20 + 300 + 4000 and relu(-1) = 0;  -5 + 60 + 700 + 8000 and 5;  the last frame is left over.
    assert projector(hidden).tolist() == [[[4321.5, 0.25], [8755.5, 5.25]]]


def test_fewer_frames_than_one_embedding_needs_give_none():
    assert Projector(4, 6)(torch.randn(2, 1, 4)).shape == (2, 0, 6)
